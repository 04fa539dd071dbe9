"""How a transaction names the tokens that it writes with, which is what the triggers of a protected table ask for.

PostgreSQL has two settings, `fencegate.lock` and `fencegate.token`; MySQL two variables, `@fencegate_lock` and
`@fencegate_token`. Each holds one line per lock, in the same order. The lock may be left out when there is one token:
then the token counts for every row that the transaction writes. SQLite has neither, so a connection of ours has a
function there that knows its tokens; in other connections it is missing, and every write fails.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Connection, RootTransaction, text

from fencegate.core.names import MAX_LOCK_KEY_BYTES

SQLITE_FUNCTION = "fencing token required"
"""Its name is what a connection is told that does not have it: `no such function: fencing token required`."""

_INFO = "fencegate.tokens"

_POSTGRESQL = text("SELECT set_config('fencegate.lock', :locks, true), set_config('fencegate.token', :tokens, true)")
_MYSQL = text("SET @fencegate_lock = :locks, @fencegate_token = :tokens")


class Named(NamedTuple):
    """Locks and their tokens, one a line, in the same order."""

    locks: str
    tokens: str


def named(tokens: Mapping[str, int]) -> Named:
    """The values of the two settings; a lock key holds no control character, so lines can't run into each other.

    >>> named({"job:a": 33, "job:b": 34})
    Named(locks='job:a\\njob:b', tokens='33\\n34')
    """
    return Named("\n".join(tokens), "\n".join(str(int(token)) for token in tokens.values()))


def name_tokens(connection: Connection, tokens: Mapping[str, int]) -> None:
    """Name the tokens of the transaction that `connection` is in.

    PostgreSQL forgets them with the transaction. MySQL and SQLite don't: name none, `{}`, when it is over.
    """
    database = connection.dialect.name
    if database == "sqlite":
        of_sqlite(connection.info, connection.connection.create_function, tokens)
    elif database == "postgresql":
        connection.execute(_POSTGRESQL, named(tokens)._asdict())
    else:
        values: dict[str, str | None] = dict(named(tokens)._asdict()) if tokens else {"locks": None, "tokens": None}
        connection.execute(_MYSQL, values)


class Held:
    """The tokens that an SQLite connection writes with, by the bytes of their lock keys."""

    tokens: Mapping[bytes, int] = MappingProxyType({})
    transaction: weakref.ref[RootTransaction] | None = None
    """They end with it: nobody who takes the connection from the pool after it may write with them. None: whoever named
    them takes them away. (Weakly: the garbage collector does not see what a connection of SQLite holds, such as this,
    and would leave it its engine.)"""

    def answer(self, asked: str, *parts: object) -> bytes | int | None:
        """What the triggers call. It never raises, since SQLite would hide what it says: None refuses."""
        lock_key = _lock_key(parts)
        if asked == "lock" or lock_key is None:
            return lock_key
        if self.transaction is not None:
            transaction = self.transaction()
            if transaction is None or not transaction.is_active:
                return None
        return self.tokens.get(lock_key)


def of_sqlite(info: dict[Any, Any], create_function: Callable[..., Any], tokens: Mapping[str, int]) -> None:
    """Name the tokens of an SQLite connection; `info` is a dict that lives exactly as long as the connection."""
    held = held_of(info, create_function)
    held.tokens, held.transaction = {lock_key.encode(): int(token) for lock_key, token in tokens.items()}, None


def held_of(info: dict[Any, Any], create_function: Callable[..., Any]) -> Held:
    held: Held | None = info.get(_INFO)
    if held is None:
        held = info[_INFO] = Held()
        # Once: to register a function anew makes SQLite compile every statement of the connection again.
        create_function(SQLITE_FUNCTION, -1, held.answer)
    return held


def _lock_key(parts: Iterable[object]) -> bytes | None:
    """The lock key of a row. Only whole numbers and text have one spelling: 7 and 7.0 are equal to SQLite."""
    if not all(isinstance(part, int | str) for part in parts):
        return None
    lock_key = "".join(map(str, parts)).encode(errors="surrogatepass")
    return lock_key if 1 <= len(lock_key) <= MAX_LOCK_KEY_BYTES else None
