"""Passing in MariaDB and MySQL.

All that looks at a fence is a locking read: under REPEATABLE READ, the default here, any other would fix the snapshot
of the whole transaction before the lock is there.

Floors of protected tables are left to their triggers. Keys travel in hexadecimal, since aiomysql can't send bytes with
every release of PyMySQL.
"""

from fencegate.core.fence import admit
from fencegate_adapters.sql.passing.claims import Claims
from fencegate_adapters.sql.passing.steps import Ask, Steps

# Into the variables that the triggers of `fencegate protect` look at; they outlive the transaction, see `after`. By the
# last they know that the fence was passed: else they would ask for the row alone, and so would all who share it. The
# answer to such a statement tells the driver besides whether there is a transaction, which that to a plain one doesn't.
# The floors are looked at for a row of the fences, and so behind it: who raises a floor locks them in this order, and a
# holder that came meanwhile would be given up on as a deadlock.
_SHARE = """
SELECT :named, :locks, CONCAT(:token, ' ', :key) INTO @fencegate_token, @fencegate_lock, @fencegate_passed
FROM fencegate_fences AS fence WHERE lock_key = UNHEX(:key) AND mode = 'enforce' AND token = :token
    AND token >= (
        SELECT coalesce(max(floor), 0) FROM fencegate_resources
        WHERE left(name, 8) <> 'protect:' AND fence.token > 0 LOCK IN SHARE MODE
    )
LOCK IN SHARE MODE
"""
# Neither this nor its count of rows can tell a stale token from an equal one; what is there afterwards does.
_RAISE = """
INSERT INTO fencegate_fences (lock_key, mode, token) VALUES (UNHEX(:key), 'enforce', :token)
ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))
"""
_LOOK = """
SELECT token, (
    SELECT coalesce(max(floor), 0) FROM fencegate_resources
    WHERE left(name, 8) <> 'protect:' AND fence.token > 0 LOCK IN SHARE MODE
)
FROM fencegate_fences AS fence WHERE lock_key = UNHEX(:key) AND mode = 'enforce' LOCK IN SHARE MODE
"""
_FORGET = "SET @fencegate_token = NULL, @fencegate_lock = NULL"


class MysqlRules:
    after = Ask(_FORGET)

    def passing(self, claims: Claims, seen: bool, careful: bool = False) -> Steps[bool]:
        for number, (lock_key, token) in enumerate(claims, 1):
            # Named when the last one is passed: a refusal leaves nothing that the connection could take to others.
            locks, tokens = claims.named if number == len(claims) else (None, None)
            values = {"key": lock_key.encode().hex().upper(), "token": int(token), "named": tokens, "locks": locks}
            ((shared,),) = (yield Ask(_SHARE, values)) if seen else [(0,)]
            if not shared:
                if seen:
                    # That row is locked for sharing now, and mostly a newer holder has been there. Two who asked for it
                    # alone would be a deadlock, in which the newer one may be given up on.
                    yield from self._look(token, values)
                yield Ask(_RAISE, values)
                ((shared,),) = yield Ask(_SHARE, values)
            if not shared:
                yield from self._look(token, values)
                raise AssertionError("a fence could not be passed, and neither its mark nor a floor is above the token")
        return True

    @staticmethod
    def _look(token: int, values: dict[str, object]) -> Steps[None]:
        """StaleToken when the mark or a floor is above the token."""
        for mark, floor in (yield Ask(_LOOK, values)):
            admit(token, max(int(mark), int(floor)))

    def claiming(self, claims: Claims) -> Steps[None]:
        yield from self.passing(claims, seen=False)

    def floor(self, claims: Claims) -> Steps[None]:
        yield from self.passing(claims, seen=True)
