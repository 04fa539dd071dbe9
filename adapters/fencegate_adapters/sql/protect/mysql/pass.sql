-- Raise the fence of a lock to a token, or refuse, and hold the lock of the fence row until the transaction ends.
CREATE PROCEDURE fencegate_pass(
    IN lock_name LONGBLOB, IN token_text LONGTEXT CHARACTER SET utf8mb4, IN record LONGBLOB)
MODIFIES SQL DATA SQL SECURITY DEFINER COMMENT <<comment>>
BEGIN
    DECLARE mark, least_token, new_token BIGINT DEFAULT NULL;
    DECLARE refusal VARCHAR(128) CHARACTER SET utf8mb4;
    IF lock_name IS NULL OR OCTET_LENGTH(lock_name) NOT BETWEEN 1 AND <<max_lock_key_bytes>> THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'fencing token required: no lock guards a row whose lock key is null or over <<max_lock_key_bytes>> bytes';
    END IF;
    IF COALESCE(token_text, '') = '' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'fencing token required: hold the lock, and SET @fencegate_token to its token before you write';
    END IF;
    IF CHAR_LENGTH(token_text) > 19 OR token_text REGEXP '[^0-9]' OR LEFT(token_text, 1) = '0'
        OR CAST(token_text AS DECIMAL(20, 0)) > 9223372036854775807 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'fencing token required: @fencegate_token is not 1 to 2^63-1 in plain digits';
    END IF;
    SET new_token = CAST(token_text AS SIGNED);
    -- Only locking reads: any other would fix what a REPEATABLE READ transaction sees before an older holder, whom this
    -- waits for, has committed. So a session remembers where it passed last, where a lock for sharing is enough: then
    -- holders of one token write side by side. Each read has an alias of its own, because within a trigger MySQL takes
    -- for all uses of one alias the strongest lock.
    IF @fencegate_passed <=> CONCAT(new_token, ' ', HEX(lock_name)) THEN
        SELECT shared.token INTO mark FROM fencegate_fences AS shared
            WHERE shared.lock_key = lock_name AND shared.mode = 'enforce' LOCK IN SHARE MODE;
    END IF;
    IF mark IS NULL OR mark < new_token THEN  -- a rollback takes the mark back, and not what the session remembers
        INSERT INTO fencegate_fences (lock_key, mode, token) VALUES (lock_name, 'enforce', new_token)
            ON DUPLICATE KEY UPDATE token = GREATEST(token, new_token);
        SELECT token INTO mark FROM fencegate_fences
            WHERE lock_key = lock_name AND mode = 'enforce' FOR UPDATE;
    END IF;
    -- The floor of this table, and those of the gateway's resources, any of which may be this table. Locked as well:
    -- a floor that is raised meanwhile waits for this transaction.
    SELECT MAX(floor) INTO least_token FROM fencegate_resources
        WHERE CAST(name AS BINARY) = record OR LEFT(name, 8) <> 'protect:' LOCK IN SHARE MODE;
    IF mark IS NULL OR new_token < mark OR new_token < COALESCE(least_token, 0) THEN
        SET @fencegate_passed = NULL;
        SET refusal = CONCAT('stale fencing token ', new_token, ': the database has seen ',
            COALESCE(GREATEST(mark, COALESCE(least_token, 0)), 'none'), '; another holder took over, so stop');
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = refusal;
    END IF;
    SET @fencegate_passed = CONCAT(new_token, ' ', HEX(lock_name));
END
