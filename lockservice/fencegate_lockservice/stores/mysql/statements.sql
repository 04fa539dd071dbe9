-- What the MySQL store says to the server, by name; `statements.py` reads it. What stands in braces is filled in
-- with names of ours, with numbers, and with hexadecimal literals: never with text that came from outside.

-- session: what every connection begins with. A transaction that its client left open must not hold rows for long.
SET SESSION sql_mode = 'STRICT_TRANS_TABLES', time_zone = '+00:00', autocommit = 1, innodb_lock_wait_timeout = 1,
    lock_wait_timeout = 3, wait_timeout = 30 /*M!100300 , idle_transaction_timeout = 5 */;

-- isolation: without gap locks, commits of different keys never wait for each other.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;

-- identity: which server this is.
SELECT CONCAT_WS(':', @@hostname, @@port, @@server_id), {now};

-- lock: the rows of all keys of a group, in their order; a row that is not there is made, empty.
-- Not INSERT IGNORE: that takes a shared lock on a row which is there, and two of those deadlock.
INSERT INTO {table} ({columns}) VALUES {rows} ON DUPLICATE KEY UPDATE version = version;

-- fits: whether so many rows have the version that is required of them.
(SELECT COUNT(*) FROM {table} WHERE {key} IN ({keys}) AND ({key}, version) IN ({pairs})) = {count};

-- compare
SET @fg_fits = {fits};

-- versions: how things are, when they don't fit.
SELECT {prefix}, {key}, version FROM {table} WHERE NOT @fg_fits AND {key} IN ({keys});

-- write
INSERT INTO {table} ({columns}) VALUES {rows} ON DUPLICATE KEY UPDATE {written};

-- remove: by the primary key and nothing else, since a scan of the table would wait for rows that are not ours.
DELETE {table} FROM {table} FORCE INDEX (PRIMARY) WHERE {key} IN ({keys});

-- count: the counter's row is locked last and until the end, so revisions become readable in their order.
UPDATE fencegate_meta
    SET revision = LAST_INSERT_ID(GREATEST(revision + 1, {now} DIV 1000) + {count} - 1),
        lines_written = lines_written + {lines}
    WHERE id = 1;

-- revision: of a line that is appended right after. NULL, and so an error, when somebody has emptied the table.
IF(ROW_COUNT() = 1, LAST_INSERT_ID(), NULL) - {back};

-- append
INSERT INTO fencegate_log (revision, line, `key`, event) VALUES {rows};

-- choose: a commit can't be conditional, but its text can be chosen.
SET @fg_end = IF(@fg_fits AND {now} <= {not_after_us}, 'COMMIT', 'DO 0');

-- verdict: whether things were as required, whether it was committed, and what time it is.
SELECT @fg_fits, @fg_end = 'COMMIT', {now};

-- load
SELECT {key}, version, {value} FROM {table} WHERE {key} IN ({keys});

-- scan
SELECT {key}, version, {value} FROM {table} WHERE {where} ORDER BY {key} LIMIT {limit};

-- lines_after
SELECT revision, line, `key`, event FROM fencegate_log WHERE revision > {since} ORDER BY revision, line LIMIT {limit};

-- lines_of
SELECT revision, line, `key`, event FROM fencegate_log WHERE revision = {revision} ORDER BY line;

-- log_state
SELECT revision, compacted, {now} FROM fencegate_meta WHERE id = 1;

-- log_size
SELECT revision, lines_written - lines_dropped, {now} FROM fencegate_meta WHERE id = 1;

-- oldest_lines
SELECT revision FROM fencegate_log ORDER BY revision, line LIMIT {limit};

-- drop_lines
DELETE FROM fencegate_log WHERE revision <= {upto};

-- note_dropped: in the same transaction, and last.
UPDATE fencegate_meta
    SET compacted = GREATEST(compacted, {upto}), lines_dropped = lines_dropped + @fg_count
    WHERE id = 1;

-- past_their_time
SELECT {key} FROM {table} WHERE keep_until < {now} ORDER BY keep_until LIMIT {limit};

-- next_due
SELECT MIN(keep_until) FROM {table} WHERE keep_until >= {now};

-- forget: in the order in which commits lock rows; one may have been written anew since it was found.
DELETE {table} FROM {table} FORCE INDEX (PRIMARY) WHERE {key} IN ({keys}) AND keep_until < {now};

-- migrated
SELECT version_num FROM {table};

-- may_insert: like the next two it is about no row, and refused to whoever may not.
INSERT INTO {table} SELECT * FROM {table} WHERE FALSE;

-- may_update
UPDATE {table} SET {column} = {column} WHERE FALSE;

-- may_delete
DELETE FROM {table} WHERE FALSE;

-- settings
SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names});

-- largest_packet
SELECT @@max_allowed_packet;

-- followers: as far as the user may see them.
SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%';

-- engines
SELECT table_name, engine FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name IN ({names});

-- columns
SELECT table_name, column_name FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name IN ({names});
