"""What `fencegate protect` is going to do to a database: statements, and what their reader should know."""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from sqlalchemy import URL, Connection, Engine, MetaData, Row, Table
from sqlalchemy.engine.interfaces import Dialect as SqlDialect
from sqlalchemy.schema import CreateTable

from fencegate.core.names import MAX_LOCK_KEY_BYTES
from fencegate_adapters.sql.protect.wanted import TableName, Wanted, beginning

_BLANK = re.compile(r"<<(\w+)>>")
_FAR_BEYOND_NOW_US = 24 * 3600 * 1_000_000


@dataclass
class Plan:
    """`steps` are the statements, in order; none when everything is as it should be."""

    table: TableName
    steps: list[str] = field(default_factory=list)
    script: str = ""
    """The same for the database's own command-line client."""
    gaps: list[str] = field(default_factory=list)
    """Ways round the triggers that the database leaves open because of what this table is: refused unless allowed."""
    warnings: list[str] = field(default_factory=list)


class Protector(Protocol):
    """How one kind of database is made to protect a table."""

    def engine(self, url: URL, *, reads_only: bool) -> Engine:
        """For the one connection that plans and installs."""

    def take_turn(self, connection: Connection) -> None:
        """Wait until no other installs in this database, and make sure that it would keep marks."""

    def plan(self, connection: Connection, wanted: Wanted) -> Plan: ...

    def plan_removal(self, connection: Connection, table: TableName) -> Plan: ...


def filled(folder: str, name: str, **blanks: str) -> str:
    """A statement from its file. What is put in is not looked at again, whatever it holds."""
    text = (Path(__file__).parent / folder / f"{name}.sql").read_text(encoding="utf-8")
    blanks["max_lock_key_bytes"] = str(MAX_LOCK_KEY_BYTES)
    return _BLANK.sub(lambda blank: blanks[blank[1]], text).strip()


def fingerprint(*parts: str) -> str:
    """Tells whether what is installed is what would be installed."""
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:16]


def untaken(name: str, taken: Iterable[str]) -> str:
    """A name that none of `taken` begins with. A table keeps what was made for it when it is renamed, under a name that
    tells of the old one, and another table may have that now."""
    while any(other.startswith(name) for other in taken):
        name = f"{name.rpartition('_')[0]}_{fingerprint(name)}"
    return name


def creation(table: Table, dialect: SqlDialect, schema: str | None = None) -> str:
    """The statement that creates one of our own tables unless it is there."""
    here = table if schema is None else table.to_metadata(MetaData(), schema=schema)
    return str(CreateTable(here, if_not_exists=True).compile(dialect=dialect)).strip()


def record_name(table: TableName) -> str:
    """In `fencegate_resources`, beside the resources of the gateway, whose names have no colon."""
    return f"protect:{table}"


def form_of(key: Sequence[str]) -> str:
    return f"protect key {','.join(key)}"


def of_another_name(triggers: Sequence[str], kept: Row[Any] | None, record: str) -> bool:
    """Whether the table has triggers that were made under another name of it: what is `kept` under this one tells of
    another table then. `record` is how a trigger spells the record that it goes by."""
    return bool(triggers) and (kept is None or any(record not in text for text in triggers))


def recording(
    plan: Plan, wanted: Wanted, kept: Row[Any] | None, *, renamed: bool
) -> Literal["done", "first", "raise", "change"]:
    """What is to be done about the record of how the table is protected, of which `kept` is there. `renamed` says that
    the table has triggers of another name.

    Under another guard the marks are those of other locks, so the floor goes up to the highest token that the database
    has seen (see `counted`).
    """
    if renamed:
        note = "the table was protected under another name, and perhaps by other locks"
    elif kept is None:
        return "first"
    elif (kept.guard, kept.form) == (wanted.guard, form_of(wanted.key)):
        return "done" if kept.floor >= (wanted.floor or 0) else "raise"
    else:
        note = f"the guard was {kept.guard!r} ({kept.form}) and is {wanted.guard!r} ({form_of(wanted.key)})"
    note += ": nothing below the highest token that this database has seen is accepted any more"
    if wanted.floor is None:
        note += "; a lease from before that never wrote may have a higher one, so end those, or give --floor VALUE"
    plan.warnings.append(note)
    return "change"


def counted(kept: Row[Any] | None, table: str, now_us: str, begins: Callable[[int, str], str]) -> str:
    """A condition on the fences whose marks the floor goes up to. `now_us` is how the database tells the time; `begins`
    that a lock key begins with so many bytes, given in hexadecimal digits. `kept` is None when it is not known which
    locks guarded the table: then all of them count.

    The marks of all locks count, and not only those of the old guard's: tokens follow the time, so these refuse leases
    of the old guard, too, that never wrote. But one that is far beyond now was forged, or comes from another issuer. Of
    a lock that never guarded this table it says nothing, and would shut everybody out of it.
    """
    begun = beginning(kept.guard, table) if kept is not None else b""
    if not begun:
        return "TRUE"
    return f"(token <= {now_us} + {_FAR_BEYOND_NOW_US} OR {begins(len(begun), begun.hex())})"
