"""Passing in SQLite: whoever writes first is the only writer until the commit."""

from fencegate.core.fence import admit
from fencegate_adapters.sql.passing.claims import Claims
from fencegate_adapters.sql.passing.steps import Ask, Steps

# It takes the writer's lock even where it changes nothing, and where it does not, no page is written.
_RAISE = "UPDATE fencegate_fences SET token = :token WHERE lock_key = :key AND mode = 'enforce' AND token < :token"
# Floors of protected tables are left to their triggers.
_LOOK = """
SELECT token, (SELECT coalesce(max(floor), 0) FROM fencegate_resources WHERE substr(name, 1, 8) <> 'protect:')
FROM fencegate_fences
WHERE lock_key = :key AND mode = 'enforce'
"""
_FIRST = "INSERT INTO fencegate_fences (lock_key, mode, token) VALUES (:key, 'enforce', :token)"

# Passes when the mark is at the token, and fails otherwise, since there is no such absolute value. The writer's lock
# comes before the look. Where it passes, no page is written: a row without a token is left out, before SQLite looks
# where it belongs. In a table that somebody made by hand it may be allowed; then the row that it would insert is there.
SHARE = """
INSERT OR IGNORE INTO fencegate_fences (lock_key, mode, token) VALUES (
    ?1, 'enforce',
    CASE
        WHEN EXISTS (
            SELECT 1
            FROM fencegate_fences
            WHERE lock_key = ?1 AND mode = 'enforce' AND token = ?2
                AND NOT EXISTS (SELECT 1 FROM fencegate_resources WHERE floor > ?2 AND substr(name, 1, 8) <> 'protect:')
        )
        THEN NULL
        ELSE abs(-9223372036854775807 - 1)
    END
)
ON CONFLICT (lock_key, mode) DO NOTHING
"""
FAILED = 1
"""The code of SQLite for that, and for much else; not for a database that is busy."""


class SqliteRules:
    after = None

    def passing(self, claims: Claims, seen: bool, careful: bool = False) -> Steps[bool]:
        for key, token in zip(claims.keys, claims.tokens.values(), strict=True):
            values = {"key": key, "token": token}
            yield Ask(_RAISE, values)
            found = yield Ask(_LOOK, values)
            if not found:
                yield Ask(_FIRST, values)
                found = yield Ask(_LOOK, values)
            admit(token, max(found[0]))
        return True

    def claiming(self, claims: Claims) -> Steps[None]:
        yield from self.passing(claims, seen=False)

    def floor(self, claims: Claims) -> Steps[None]:
        yield from self.passing(claims, seen=True)
