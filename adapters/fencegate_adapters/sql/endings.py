"""Statements, as text, behind which the transaction that passed is no more, although there may be another one."""

import re

# In MySQL to begin is to commit first; elsewhere it is an error, or changes nothing.
_BLANK = r"(?:\s|/\*.*?\*/|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$))*"
_ENDS = r"COMMIT(?!\s+PREPARED)|END|ABORT|ROLLBACK(?!\s+PREPARED)(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b)"
_ENDING = re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE | re.DOTALL)
_ENDING_IN_MYSQL = re.compile(rf"{_BLANK}(?:{_ENDS}|BEGIN|START\s+TRANSACTION)\b", re.IGNORECASE | re.DOTALL)
_MOSTLY = frozenset(("SELECT", "INSERT", "UPDATE", "DELETE"))


def ends(kind: str, statement: str) -> bool:
    """Whether it ends the transaction: with `AND CHAIN`, say, a driver sees none missing.

    >>> ends("postgresql", "commit and chain"), ends("postgresql", "ROLLBACK TO SAVEPOINT a"), ends("mysql", "BEGIN")
    (True, False, True)
    """
    if statement[:6] in _MOSTLY:
        return False
    ending = _ENDING_IN_MYSQL if kind in ("mysql", "mariadb") else _ENDING
    return ending.match(statement) is not None
