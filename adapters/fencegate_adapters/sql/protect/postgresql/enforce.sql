-- For any client: pass the fence of a lock, and name its token for the triggers until the transaction ends.
CREATE OR REPLACE FUNCTION fencegate.enforce(lock_key text, token bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fencegate$
DECLARE
    locks text[] := string_to_array(current_setting('fencegate.lock', true), E'\n');
    tokens text[] := string_to_array(current_setting('fencegate.token', true), E'\n');
    place integer;
BEGIN
    IF coalesce(lock_key, '') = '' OR lock_key ~ E'[\\x01-\\x1f\\x7f]' THEN
        RAISE EXCEPTION 'fencing token required: the lock key is null, empty, or holds a control character'
            USING ERRCODE = 'ZF003';
    END IF;
    IF token IS NULL OR token < 1 THEN
        RAISE EXCEPTION 'fencing token required: a token is 1 to 2^63-1' USING ERRCODE = 'ZF002';
    END IF;
    PERFORM fencegate.raise_fence(lock_key, token, NULL);
    IF coalesce(cardinality(locks), 0) = 0 OR cardinality(locks) <> coalesce(cardinality(tokens), 0) THEN
        locks := '{}';
        tokens := '{}';
    END IF;
    place := coalesce(array_position(locks, lock_key COLLATE "C"), cardinality(locks) + 1);
    locks[place] := lock_key;
    tokens[place] := token::text;
    PERFORM set_config('fencegate.lock', array_to_string(locks, E'\n'), true);
    PERFORM set_config('fencegate.token', array_to_string(tokens, E'\n'), true);
    RETURN token;
END
$fencegate$
