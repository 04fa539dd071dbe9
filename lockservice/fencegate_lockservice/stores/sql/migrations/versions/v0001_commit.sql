-- One call commits a group: all that can be judged and written without asking the client in between.
--
-- p_locks and p_entries are the changes of all items, as rows: i item, k key, x expected version (null: absent), v new
-- version, d new value (null: delete), c compare only, u keep until; and what a person reads of a lock. A key that one
-- item writes occurs in no other item. p_lines are the lines for the change log: i item, k key, e event. p_earliest is
-- the least of p_not_after. p_hints tells which statements have something to do: 1 locks that are replaced, 2 locks that
-- are removed or compared, 4 and 8 the same of other entries.
-- Verdicts, one digit for each item: 0 done, 1 conflict, 2 too late.
--
-- Every key is locked first, in the order of its bytes, locks before other entries, so that two groups never wait for
-- each other in a ring. A key that is not there is put there at once, with what its item would write: that is its lock,
-- since whoever else comes for the key waits for the fate of this row. A key that is only compared is locked alike, for
-- a share lock would have to be taken in a second round, out of order. Rows that were put there for an item that fails,
-- or only to be compared, are removed again before anybody can see them. They are told by xmin and version: xmin alone
-- comes round after four thousand million transactions.
-- The revision is taken last, so that the order of revisions is the order of commits.
CREATE FUNCTION fencegate_commit_1(
    p_not_after bigint[], p_earliest bigint, p_hints int, p_locks json, p_entries json, p_lines json,
    OUT at_us bigint, OUT verdicts text
)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET lock_timeout = '2s'
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    me      xid := pg_current_xact_id()::xid;
    bad     int[] := '{}';
    late    int[] := '{}';
    failed  int[];
    lines   int;
    last    bigint;
    written bigint;
    dropped bigint;
    up_to   bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'FG002',
            MESSAGE = 'Fencegate needs default_transaction_isolation = ''read committed''';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    -- lock

    IF p_locks IS NOT NULL THEN
        INSERT INTO distributed_locks AS there (
            lock_key, namespace, owner_id, lock_token, fencing_token, expires_at, reentrancy_count,
            created_at, updated_at, version, keep_until, record
        )
        SELECT DISTINCT ON (c.k)
            c.k, split_part(c.k, ':', 1), c.o, c.t, coalesce(c.f, 0), to_timestamp(c.z / 1e6), coalesce(c.n, 0),
            clock_timestamp(), clock_timestamp(), coalesce(c.v, ''), c.u, coalesce(c.d, '')
        FROM json_to_recordset(p_locks) AS c(
            k text COLLATE "C", v text, d text, u bigint, o text, t text, f bigint, z bigint, n int
        )
        ORDER BY c.k
        ON CONFLICT (lock_key) DO UPDATE SET version = there.version WHERE false;  -- locks the row, and writes nothing
    END IF;
    IF p_entries IS NOT NULL THEN
        INSERT INTO fencegate_entries AS there (key, version, keep_until, value)
        SELECT DISTINCT ON (c.k) c.k, coalesce(c.v, ''), c.u, coalesce(c.d, '')
        FROM json_to_recordset(p_entries) AS c(k text COLLATE "C", v text, d text, u bigint)
        ORDER BY c.k
        ON CONFLICT (key) DO UPDATE SET version = there.version WHERE false;
    END IF;

    -- judge: what this very transaction put there was not there

    at_us := extract(epoch FROM clock_timestamp()) * 1000000;
    IF at_us > p_earliest THEN
        SELECT array_agg(number - 1) INTO late
        FROM unnest(p_not_after) WITH ORDINALITY AS item(not_after, number) WHERE at_us > not_after;
    END IF;
    SELECT coalesce(array_agg(i), '{}') INTO bad FROM (
        SELECT c.i
        FROM json_to_recordset(coalesce(p_locks, '[]')) AS c(i int, k text COLLATE "C", x text, v text)
        LEFT JOIN distributed_locks AS there
        ON there.lock_key = c.k AND (there.xmin <> me OR there.version <> coalesce(c.v, ''))
        WHERE there.version IS DISTINCT FROM c.x
        UNION ALL
        SELECT c.i
        FROM json_to_recordset(coalesce(p_entries, '[]')) AS c(i int, k text COLLATE "C", x text, v text)
        LEFT JOIN fencegate_entries AS there
        ON there.key = c.k AND (there.xmin <> me OR there.version <> coalesce(c.v, ''))
        WHERE there.version IS DISTINCT FROM c.x
    ) AS differing;
    failed := bad || late;
    IF cardinality(failed) > 0 THEN
        p_hints := p_hints | 2 | 8;
    END IF;

    -- write

    IF p_locks IS NOT NULL AND p_hints & 2 > 0 THEN
        DELETE FROM distributed_locks AS there
        USING json_to_recordset(p_locks) AS c(i int, k text COLLATE "C", v text, d text, c boolean)
        WHERE there.lock_key = c.k AND CASE
            WHEN c.c OR c.i = ANY (failed) THEN there.xmin = me AND there.version = coalesce(c.v, '')
            ELSE c.d IS NULL
        END;
    END IF;
    IF p_hints & 1 > 0 THEN
        UPDATE distributed_locks AS there
        SET version = c.v, keep_until = c.u, record = c.d, owner_id = c.o, lock_token = c.t, fencing_token = c.f,
            expires_at = to_timestamp(c.z / 1e6), reentrancy_count = c.n, updated_at = clock_timestamp()
        FROM json_to_recordset(p_locks) AS c(
            i int, k text COLLATE "C", x text, v text, d text, c boolean, u bigint,
            o text, t text, f bigint, z bigint, n int
        )
        WHERE there.lock_key = c.k AND c.x IS NOT NULL AND c.d IS NOT NULL AND NOT c.c AND c.i <> ALL (failed);
    END IF;
    IF p_entries IS NOT NULL AND p_hints & 8 > 0 THEN
        DELETE FROM fencegate_entries AS there
        USING json_to_recordset(p_entries) AS c(i int, k text COLLATE "C", v text, d text, c boolean)
        WHERE there.key = c.k AND CASE
            WHEN c.c OR c.i = ANY (failed) THEN there.xmin = me AND there.version = coalesce(c.v, '')
            ELSE c.d IS NULL
        END;
    END IF;
    IF p_hints & 4 > 0 THEN
        UPDATE fencegate_entries AS there
        SET version = c.v, keep_until = c.u, value = c.d
        FROM json_to_recordset(p_entries) AS c(
            i int, k text COLLATE "C", x text, v text, d text, c boolean, u bigint
        )
        WHERE there.key = c.k AND c.x IS NOT NULL AND c.d IS NOT NULL AND NOT c.c AND c.i <> ALL (failed);
    END IF;

    -- forget what is past its time: more than a group brings, so that it doesn't pile up; never waiting for anybody

    DELETE FROM fencegate_entries WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM fencegate_entries WHERE keep_until < at_us
        ORDER BY keep_until LIMIT 16 + 4 * cardinality(p_not_after) FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM distributed_locks WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM distributed_locks WHERE keep_until < at_us
        ORDER BY keep_until LIMIT 16 + 4 * cardinality(p_not_after) FOR UPDATE SKIP LOCKED
    ));

    -- log

    lines := coalesce(json_array_length(p_lines), 0);
    IF lines > 0 AND cardinality(failed) > 0 THEN
        SELECT count(*) INTO lines FROM json_to_recordset(p_lines) AS line(i int) WHERE line.i <> ALL (failed);
    END IF;
    IF lines > 0 THEN
        -- A watch's place is revision * 65536 + line, so a very large group has more than one revision.
        UPDATE fencegate_meta
        SET revision = greatest(revision + 1, at_us / 1000) + ((lines - 1) >> 15), lines_written = lines_written + lines
        WHERE id = 1
        RETURNING revision - ((lines - 1) >> 15), lines_written, lines_dropped INTO STRICT last, written, dropped;
        INSERT INTO fencegate_log (revision, line, key, event)
        SELECT last + (number >> 15), number & 32767, k, e
        FROM (
            SELECT k, e, (row_number() OVER (ORDER BY place) - 1)::int AS number
            FROM ROWS FROM (json_to_recordset(p_lines) AS (i int, k text, e text))
            WITH ORDINALITY AS line(i, k, e, place)
            WHERE i <> ALL (failed)
        ) AS numbered;
        PERFORM pg_notify('fencegate_' || md5(current_schema()), '');
        -- Now and then, what is older than an hour or than the last 100 000 lines: more than came since the last time.
        IF written / 256 > (written - lines) / 256 THEN
            WITH gone AS (
                DELETE FROM fencegate_log WHERE ctid = ANY (ARRAY(
                    SELECT ctid FROM fencegate_log
                    WHERE revision < CASE WHEN written - dropped > 100000 THEN last ELSE at_us / 1000 - 3600000 END
                    ORDER BY revision, line LIMIT 1024 + 2 * lines FOR UPDATE SKIP LOCKED
                )) RETURNING revision
            )
            SELECT count(*), max(revision) INTO dropped, up_to FROM gone;
            IF dropped > 0 THEN
                UPDATE fencegate_meta
                SET compacted = greatest(compacted, up_to), lines_dropped = lines_dropped + dropped
                WHERE id = 1;
            END IF;
        END IF;
    END IF;

    -- Locks may have been waited for since it was judged what is late: then it is all undone, and asked for again.
    at_us := extract(epoch FROM clock_timestamp()) * 1000000;
    IF at_us > p_earliest AND EXISTS (
        SELECT FROM unnest(p_not_after) WITH ORDINALITY AS item(not_after, number)
        WHERE at_us > not_after AND number - 1 <> ALL (failed)
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'FG001', MESSAGE = 'too late while it waited';
    END IF;
    verdicts := repeat('0', cardinality(p_not_after));
    IF cardinality(failed) > 0 THEN
        SELECT string_agg(
            CASE WHEN number - 1 = ANY (late) THEN '2' WHEN number - 1 = ANY (bad) THEN '1' ELSE '0' END, ''
            ORDER BY number
        ) INTO verdicts FROM generate_series(1, cardinality(p_not_after)) AS number;
    END IF;
END
$$;
