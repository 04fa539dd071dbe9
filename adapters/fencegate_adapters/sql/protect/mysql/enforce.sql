-- For any client: pass the fence of a lock. Triggers of protected tables ask for @fencegate_token besides.
CREATE PROCEDURE fencegate_enforce(IN lock_name LONGTEXT CHARACTER SET utf8mb4, IN token LONGTEXT CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY DEFINER COMMENT <<comment>>
BEGIN
    CALL fencegate_pass(CAST(lock_name AS BINARY), token, NULL);
END
