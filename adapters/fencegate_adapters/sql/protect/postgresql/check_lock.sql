-- Pass the fence of a lock with the token that the transaction names for it.
CREATE OR REPLACE FUNCTION fencegate.check_lock(lock_name text, record text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fencegate$
DECLARE
    -- Null before the first use in a session, and empty after it.
    locks text := coalesce(current_setting('fencegate.lock', true), '');
    tokens text := coalesce(current_setting('fencegate.token', true), '');
BEGIN
    IF lock_name IS NULL THEN
        RAISE EXCEPTION 'fencing token required: a column that the guard needs is null, so no lock guards this row'
            USING ERRCODE = 'ZF003';
    END IF;
    IF locks <> '' THEN
        tokens := (string_to_array(tokens, E'\n'))
            [array_position(string_to_array(locks, E'\n'), lock_name COLLATE "C")];
    END IF;
    IF coalesce(tokens, '') = '' THEN
        RAISE EXCEPTION 'fencing token required: this row is guarded by the lock %', left(lock_name, 100)
            USING ERRCODE = 'ZF002', HINT = 'Hold the lock, and in the transaction that writes name its token: '
                'SELECT set_config(''fencegate.token'', ''34'', true)';
    END IF;
    IF tokens !~ '^[1-9][0-9]{0,18}$' OR tokens::numeric > 9223372036854775807 THEN
        RAISE EXCEPTION 'fencing token required: fencegate.token is not 1 to 2^63-1 in plain digits'
            USING ERRCODE = 'ZF002';
    END IF;
    PERFORM fencegate.raise_fence(lock_name, tokens::bigint, record);
END
$fencegate$
