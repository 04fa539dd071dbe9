    SELECT CASE
        WHEN lock_key IS NULL THEN
            RAISE(ABORT, 'fencing token required: no lock guards a row whose key is null, not whole, or too long')
        WHEN token IS NULL THEN
            RAISE(ABORT, 'fencing token required: this transaction names none for the lock of this row')
        WHEN token < (
            SELECT max(floor) FROM fencegate_resources WHERE name = <<record>> OR substr(name, 1, 8) <> 'protect:')
            OR token < (SELECT f.token FROM fencegate_fences f WHERE f.lock_key = asked.lock_key AND f.mode = 'enforce')
            THEN RAISE(ABORT, 'stale fencing token: another holder took over, so stop')
        END
        FROM (SELECT <<function>>('lock', <<parts>>) AS lock_key, <<function>>('token', <<parts>>) AS token) AS asked;
    -- Two statements that can't conflict: a conflict would be resolved as the writer's own INSERT OR … says.
    INSERT INTO fencegate_fences (lock_key, mode, token)
        SELECT lock_key, 'enforce', 0 FROM (SELECT <<function>>('lock', <<parts>>) AS lock_key) AS asked
        WHERE NOT EXISTS (
            SELECT 1 FROM fencegate_fences f WHERE f.lock_key = asked.lock_key AND f.mode = 'enforce');
    UPDATE fencegate_fences SET token = <<function>>('token', <<parts>>)
        WHERE lock_key = <<function>>('lock', <<parts>>) AND mode = 'enforce'
        AND token < <<function>>('token', <<parts>>);
