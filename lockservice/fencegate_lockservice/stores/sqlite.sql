-- One table, so that a group of commits is one statement, one transaction and one flush. Values are JSON text, which a
-- person can read; keys compare as bytes. The change log lies in it too, before
-- all other keys: \x01log/REVISION/LINE/KEY.
CREATE TABLE IF NOT EXISTS entries (
    key        TEXT    NOT NULL COLLATE BINARY PRIMARY KEY,
    version    TEXT    NOT NULL,
    value      TEXT    NOT NULL,
    keep_until INTEGER
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS entries_by_keep_until ON entries (keep_until) WHERE keep_until IS NOT NULL;
