"""Statements, as text, behind which the transaction that passed is no more, although there may be another one."""

import re

from fencegate.core.errors import UnsafeConfiguration

_BLANK = r"(?:\s|/\*.*?\*/|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$))*"
_ENDS = r"COMMIT(?!\s+PREPARED)|END|ABORT|ROLLBACK(?!\s+PREPARED)(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b)"
# In MySQL to begin is to commit first; elsewhere it is an error, or changes nothing. Of what else commits there, these
# are answered by rows, and as if the transaction were still there.
_BEGINS_IN_MYSQL = r"BEGIN|START\s+TRANSACTION"
_TENDS_IN_MYSQL = (
    r"(?:ANALYZE|OPTIMIZE|CHECK|REPAIR)\s+(?:NO_WRITE_TO_BINLOG\s+|LOCAL\s+)?TABLES?|(?:CACHE|LOAD)\s+INDEX"
)
_EXECUTED = r"(?:/\*M?!\d*\s*)?"
"""The beginning of what is a comment to others than MySQL, or MariaDB."""
_ENDING = re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE | re.DOTALL)
_ENDING_IN_MYSQL = re.compile(
    rf"{_BLANK}{_EXECUTED}(?:{_ENDS}|{_BEGINS_IN_MYSQL}|{_TENDS_IN_MYSQL})\b", re.IGNORECASE | re.DOTALL
)
_SECOND_PHASE_IN_MYSQL = re.compile(rf"{_BLANK}{_EXECUTED}XA\s+COMMIT\b", re.IGNORECASE | re.DOTALL)
_LOCKING_IN_MYSQL = re.compile(rf"{_BLANK}{_EXECUTED}LOCK\s+TABLES?\b", re.IGNORECASE | re.DOTALL)
PLAIN = frozenset(("SELECT", "INSERT", "UPDATE", "DELETE"))
"""How statements begin that do nothing to a transaction."""

LOCKS_TABLES = (
    "LOCK TABLES commits what was done, and the fence is gone with it; nor does the end of the block let these locks "
    "go: lock the rows, by SELECT … FOR UPDATE"
)


def ends(kind: str, statement: str) -> bool:
    """Whether it ends the transaction: with `AND CHAIN`, say, a driver sees none missing.

    >>> ends("postgresql", "commit and chain"), ends("postgresql", "ROLLBACK TO SAVEPOINT a"), ends("mysql", "BEGIN")
    (True, False, True)
    """
    if statement[:6] in PLAIN:
        return False
    ending = _ENDING_IN_MYSQL if _is_mysql(kind) else _ENDING
    return ending.match(statement) is not None


def is_second_phase(kind: str, statement: str) -> bool:
    """Whether it commits what was prepared, which passed before: from then on MySQL (not MariaDB) says that there is no
    transaction any more.

    >>> is_second_phase("mysql", "XA COMMIT 'a'"), is_second_phase("mysql", "XA PREPARE 'a'")
    (True, False)
    """
    return statement[:6] not in PLAIN and _is_mysql(kind) and _SECOND_PHASE_IN_MYSQL.match(statement) is not None


def check_allowed(kind: str, statement: str) -> None:
    """UnsafeConfiguration for one that must not be executed in a block: it would be too late afterwards."""
    if statement[:6] not in PLAIN and _is_mysql(kind) and _LOCKING_IN_MYSQL.match(statement):
        raise UnsafeConfiguration(LOCKS_TABLES)


def _is_mysql(kind: str) -> bool:
    return kind in ("mysql", "mariadb")
