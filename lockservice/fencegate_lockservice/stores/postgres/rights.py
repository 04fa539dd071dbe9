"""Whether the role may do all that a commit does: told at start, and not by the first lock that can't be granted."""

from collections import defaultdict

from fencegate.core.errors import UnsafeConfiguration
from fencegate_lockservice.stores.postgres.link import Connection

TO_USE = "GRANT USAGE ON SCHEMA … and GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA … TO it"

_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
_NEEDED = {
    "distributed_locks": _ALL,
    "fencegate_entries": _ALL,
    "fencegate_log": _ALL,
    "fencegate_meta": ("SELECT", "UPDATE"),
}
_LACKING = """
SELECT name, there IS NULL, needed FROM unnest(%(tables)s::text[], %(rights)s::text[]) AS wanted(name, needed),
    to_regclass(quote_ident(%(schema)s) || '.' || name) AS there
WHERE there IS NULL OR NOT has_table_privilege(there, needed)
UNION ALL
SELECT proname, false, 'EXECUTE' FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace
WHERE nspname = %(schema)s AND proname = 'fencegate_commit_1' AND NOT has_function_privilege(pg_proc.oid, 'EXECUTE')
"""


async def check_rights(connection: Connection, schema: str, server: str) -> None:
    """UnsafeConfiguration when a table is gone, or the role may not use one as a commit does."""
    needed = [(table, right) for table, rights in _NEEDED.items() for right in rights]
    tables, rights = zip(*needed, strict=True)
    asked = {"schema": schema, "tables": list(tables), "rights": list(rights)}
    lacking: defaultdict[str, list[str]] = defaultdict(list)
    for name, is_lost, right in await (await connection.execute(_LACKING, asked)).fetchall():
        if is_lost:
            raise UnsafeConfiguration(
                f"{server}: the schema {schema!r} has lost {name}: restore it, or begin with an empty schema"
            )
        lacking[name].append(right)
    if lacking:
        told = "; ".join(f"{', '.join(rights)} on {name}" for name, rights in lacking.items())
        execute = ", and EXECUTE on its functions" if "EXECUTE" in told else ""
        raise UnsafeConfiguration(f"{server}: this role lacks {told}. Let the owner of the tables {TO_USE}{execute}")
