-- Pass the fence of a lock with the token that the session names for it.
CREATE PROCEDURE fencegate_check(IN lock_name LONGBLOB, IN record LONGBLOB)
MODIFIES SQL DATA SQL SECURITY DEFINER COMMENT <<comment>>
BEGIN
    DECLARE locks LONGBLOB DEFAULT CAST(CONVERT(@fencegate_lock USING utf8mb4) AS BINARY);
    DECLARE tokens LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(@fencegate_token USING utf8mb4);
    DECLARE place INT DEFAULT 0;
    IF lock_name IS NOT NULL AND COALESCE(OCTET_LENGTH(locks), 0) > 0 THEN
        SET locks = CONCAT(X'0A', locks, X'0A');
        SET place = LOCATE(CONCAT(X'0A', lock_name, X'0A'), locks);
        IF place = 0 THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
                'fencing token required: this row is guarded by another lock than the one in @fencegate_lock';
        END IF;
        -- The line of the lock, counted by the ends of lines up to it, is the line of its token.
        SET place = place - OCTET_LENGTH(REPLACE(LEFT(locks, place), X'0A', ''));
        SET tokens = SUBSTRING_INDEX(SUBSTRING_INDEX(CONCAT(tokens, REPEAT(CHAR(10 USING utf8mb4), place)),
            CHAR(10 USING utf8mb4), place), CHAR(10 USING utf8mb4), -1);
    END IF;
    CALL fencegate_pass(lock_name, tokens, record);
END
