-- Values are JSON text, so that a person can read them; keys compare as bytes.
CREATE TABLE IF NOT EXISTS entries (
    key        TEXT    NOT NULL COLLATE BINARY PRIMARY KEY,
    version    TEXT    NOT NULL,
    value      TEXT    NOT NULL,
    keep_until INTEGER
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS entries_by_keep_until ON entries (keep_until) WHERE keep_until IS NOT NULL;

CREATE TABLE IF NOT EXISTS log (
    revision INTEGER NOT NULL,
    line     INTEGER NOT NULL,
    key      TEXT    NOT NULL,
    event    TEXT    NOT NULL,
    PRIMARY KEY (revision, line)
) WITHOUT ROWID;
