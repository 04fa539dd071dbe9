"""Passing in PostgreSQL.

A holder that finds the mark at its token locks the fence row for sharing: so those of one token write in parallel, and
a newer one waits for them. Only to raise the mark is the row locked for oneself.

Under REPEATABLE READ and SERIALIZABLE a transaction sees what was there at its first statement. Raising the mark there
would let it wait for an older holder, and then go on without seeing what that one wrote. So the mark is raised before,
in a transaction of its own; a snapshot that shows it at the token has seen the end of every older holder. And the
snapshot is taken only after nobody can be raising a floor (`careful`).
"""

from fencegate.core.fence import admit
from fencegate_adapters.sql.passing.claims import Claims
from fencegate_adapters.sql.passing.steps import Ask, ClaimFirst, Steps

IDLE_MS = 60_000
"""How long a transaction that passed may say nothing: the database ends one whose process stands still after that. Only
where the connection has no limit of its own."""
WAIT_MS = 10_000
"""How long a holder waits for an older one's transaction, where the connection has no limit of its own."""
_FRESH = ("read committed", "read uncommitted")
"""The levels at which every statement sees what was committed before it."""

_SETTINGS = """
    set_config('fencegate.token', :named, true), set_config('fencegate.lock', :locks, true),
    CASE current_setting('idle_in_transaction_session_timeout') WHEN '0'
        THEN set_config('idle_in_transaction_session_timeout', :idle, true) END
"""
# Those of protected tables are left to their triggers.
_FLOOR = "(SELECT coalesce(max(floor), 0) FROM fencegate_resources WHERE left(name, 8) <> 'protect:')"

# One that a newer holder has locked is left out instead of waited for: `_RAISE` then waits, and not for ever.
_SHARE_ONE = f"""
SELECT {_FLOOR}, current_setting('transaction_isolation'), {_SETTINGS}
FROM fencegate_fences AS fence
WHERE fence.lock_key = CAST(:key AS bytea) AND fence.mode = 'enforce' AND fence.token = :token
FOR SHARE OF fence SKIP LOCKED
"""  # noqa: S608 - made of constants
_WANTED = "unnest(CAST(:keys AS bytea[]), CAST(:tokens AS bigint[])) AS wanted (lock_key, token)"
# Nothing is locked unless all marks are at their tokens, so that nobody has to lock for himself what he shares.
_SHARE = f"""
WITH equal AS MATERIALIZED (
    SELECT count(*) AS number
    FROM {_WANTED} JOIN fencegate_fences AS fence USING (lock_key)
    WHERE fence.mode = 'enforce' AND fence.token = wanted.token
)
SELECT {_FLOOR}, current_setting('transaction_isolation'), {_SETTINGS}
FROM equal, {_WANTED} JOIN fencegate_fences AS fence USING (lock_key)
WHERE fence.mode = 'enforce' AND fence.token = wanted.token AND equal.number = :number
ORDER BY fence.lock_key
FOR SHARE OF fence
"""  # noqa: S608
# The wait is bounded before it begins, and as it was when it is over. Who is stale already waits for nobody.
_RAISE = f"""
WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS wait),
limits AS MATERIALIZED (
    SELECT CASE before.wait WHEN '0' THEN set_config('lock_timeout', :wait, true) END FROM before
)
INSERT INTO fencegate_fences AS fence (lock_key, mode, token)
SELECT wanted.lock_key, 'enforce', wanted.token
FROM limits, {_WANTED}
WHERE current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
    AND NOT EXISTS (
        SELECT
        FROM {_WANTED} JOIN fencegate_fences AS higher USING (lock_key)
        WHERE higher.mode = 'enforce' AND higher.token > wanted.token
    )
ORDER BY wanted.lock_key
ON CONFLICT (lock_key, mode) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token
RETURNING {_FLOOR}, set_config('lock_timeout', (SELECT wait FROM before), true), {_SETTINGS}
"""  # noqa: S608
_LOOK = f"""
SELECT current_setting('transaction_isolation'), wanted.lock_key, fence.token
FROM {_WANTED} LEFT JOIN fencegate_fences AS fence ON fence.lock_key = wanted.lock_key AND fence.mode = 'enforce'
"""  # noqa: S608
_NOT_THERE = "fencegate: the mark is not at this token, or there is more to look at"
# As `_SHARE_ONE`, kept prepared by the server; but it fails when there is no such row, and the server's log says why.
# Nor does it pass below a floor, or above READ COMMITTED, where more than this is to be looked at.
SHARE = f"""
SELECT
    set_config(
        coalesce(
            (
                SELECT 'fencegate.token'
                FROM fencegate_fences AS fence
                WHERE fence.lock_key = CAST($1 AS bytea) AND fence.mode = 'enforce' AND fence.token = CAST($2 AS bigint)
                    AND current_setting('transaction_isolation') = 'read committed'
                    AND NOT EXISTS (SELECT FROM fencegate_resources WHERE floor > $2 AND left(name, 8) <> 'protect:')
                FOR SHARE OF fence SKIP LOCKED
            ),
            current_setting('{_NOT_THERE}')
        ),
        CAST($2 AS text), true
    ),
    set_config('fencegate.lock', convert_from($1, 'UTF8'), true),
    CASE current_setting('idle_in_transaction_session_timeout') WHEN '0'
        THEN set_config('idle_in_transaction_session_timeout', '{IDLE_MS}', true) END
""".encode()  # noqa: S608
# After that failed, for the reason; and the transaction that it leaves has failed as well.
WHY = f"""
ROLLBACK;
SELECT greatest({_FLOOR}, max(token)) FROM fencegate_fences WHERE lock_key = decode('%s', 'hex') AND mode = 'enforce';
BEGIN;
SELECT current_setting('{_NOT_THERE}')
""".encode()  # noqa: S608
# A transaction of its own. A mark that is there already is left alone: to lock it is to wait for all who share it.
RAISE_ALONE = f"""
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL synchronous_commit = off;
SELECT set_config('lock_timeout', '{WAIT_MS}', true) WHERE current_setting('lock_timeout') = '0';
INSERT INTO fencegate_fences AS fence (lock_key, mode, token)
SELECT decode('%s', 'hex'), 'enforce', %d
WHERE NOT EXISTS (
    SELECT FROM fencegate_fences WHERE lock_key = decode('%s', 'hex') AND mode = 'enforce' AND token >= %d
)
ON CONFLICT (lock_key, mode) DO UPDATE SET token = excluded.token WHERE fence.token < excluded.token;
COMMIT
""".encode()  # noqa: S608
# Takes no snapshot, and waits for whoever raises a floor: what is looked at after it shows that floor.
_LOCK = "LOCK TABLE fencegate_fences IN ROW SHARE MODE"
_READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"


class PostgresqlRules:
    after = None  # what was set for the transaction ends with it

    def passing(self, claims: Claims, seen: bool, careful: bool = False) -> Steps[bool]:
        values = _values(claims)
        if careful:
            yield Ask(_LOCK)
        # One that is new here may be known to others, such as the worker processes of one lease: who raises a mark that
        # is there already waits for all of them. (Several are locked in their order, without leaving any out.)
        if seen or careful or len(claims) == 1:
            level = yield from self._share(claims, values)
            if level is not None:
                return careful or level in _FRESH
        raised = yield Ask(_RAISE, values)
        if len(raised) == len(claims):
            admit(claims.lowest, int(raised[0][0]))
            return True
        found = yield Ask(_LOOK, values)  # it is higher, or the level of isolation does not allow to raise it
        marks = {bytes(key).decode(): int(mark or 0) for _, key, mark in found}
        for lock_key, token in claims:
            admit(token, marks[lock_key])
        if marks != claims.tokens or (yield from self._share(claims, values)) is None:
            raise ClaimFirst
        return careful

    @staticmethod
    def _share(claims: Claims, values: dict[str, object]) -> Steps[str | None]:
        """The level of isolation; None when a mark is not at its token, or locked by one who raises it."""
        shared = yield Ask(_SHARE_ONE if len(claims) == 1 else _SHARE, values)
        if len(shared) != len(claims):
            return None
        admit(claims.lowest, int(shared[0][0]))
        return str(shared[0][1])

    def claiming(self, claims: Claims) -> Steps[None]:
        yield Ask(_READ_COMMITTED)
        yield from self.passing(claims, seen=False)

    def floor(self, claims: Claims) -> Steps[None]:
        ((floor,),) = yield Ask(f"SELECT {_FLOOR}")
        admit(claims.lowest, int(floor))


def _values(claims: Claims) -> dict[str, object]:
    locks, tokens = claims.named
    return {
        "key": claims.keys[0],
        "token": int(next(iter(claims.tokens.values()))),
        "keys": claims.keys,
        "tokens": [int(token) for token in claims.tokens.values()],
        "number": len(claims),
        "named": tokens,
        "locks": locks,
        "idle": str(IDLE_MS),
        "wait": str(WAIT_MS),
    }
