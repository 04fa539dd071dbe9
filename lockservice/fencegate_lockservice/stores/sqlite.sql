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

-- A group of commits is one statement, and so one transaction and one flush: a row inserted here, whose columns are JSON
-- arrays of what to remove, to write and to log.
CREATE VIEW IF NOT EXISTS groups AS SELECT NULL AS removed, NULL AS written, NULL AS logged;

CREATE TRIGGER IF NOT EXISTS write_group INSTEAD OF INSERT ON groups
BEGIN
    DELETE FROM entries WHERE key IN (SELECT value FROM json_each(new.removed));
    INSERT OR REPLACE INTO entries
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(new.written);
    INSERT INTO log
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(new.logged);
END;
