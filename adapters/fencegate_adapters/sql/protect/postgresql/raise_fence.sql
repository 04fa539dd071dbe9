-- Raise the fence of a lock to a token, or refuse, and hold the lock of the fence row until the transaction ends.
CREATE OR REPLACE FUNCTION fencegate.raise_fence(lock_name text, new_token bigint, record text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fencegate$
DECLARE
    fence_key bytea := convert_to(lock_name, 'UTF8');
    mark bigint;
    least_token bigint;
BEGIN
    IF octet_length(fence_key) NOT BETWEEN 1 AND <<max_lock_key_bytes>> THEN
        RAISE EXCEPTION 'fencing token required: no lock has a key that is empty or over <<max_lock_key_bytes>> bytes'
            USING ERRCODE = 'ZF003';
    END IF;
    SELECT token INTO mark FROM <<fences>> WHERE lock_key = fence_key AND mode = 'enforce';
    IF mark = new_token THEN
        -- Holders of one token write side by side. Not the first read: two that share it could not both raise it.
        SELECT token INTO mark FROM <<fences>> WHERE lock_key = fence_key AND mode = 'enforce' FOR SHARE;
    ELSE
        INSERT INTO <<fences>> AS fence (lock_key, mode, token) VALUES (fence_key, 'enforce', new_token)
        ON CONFLICT (lock_key, mode) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token
        RETURNING fence.token INTO mark;
        IF NOT FOUND THEN
            SELECT token INTO mark FROM <<fences>> WHERE lock_key = fence_key AND mode = 'enforce';
        END IF;
    END IF;
    -- The floor of this table, and those of the gateway's resources, any of which may be this table. Who raises one
    -- keeps everybody out of the fences meanwhile; but what a transaction with an old snapshot sees may be older still.
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        SELECT max(floors.floor) INTO least_token FROM (
            SELECT floor FROM <<resources>> WHERE name = record OR left(name, 8) <> 'protect:' FOR SHARE) AS floors;
    ELSE
        SELECT max(floor) INTO least_token FROM <<resources>> WHERE name = record OR left(name, 8) <> 'protect:';
    END IF;
    IF mark IS NULL OR new_token < mark OR new_token < least_token THEN
        RAISE EXCEPTION 'stale fencing token % of the lock %: the database has seen %',
            new_token, left(lock_name, 100), greatest(mark, least_token)
            USING ERRCODE = 'ZF001', HINT = 'Another holder took over: stop, and never retry with this token.';
    END IF;
    RETURN mark;
END
$fencegate$
