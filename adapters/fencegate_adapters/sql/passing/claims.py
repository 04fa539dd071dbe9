"""What a transaction wants to pass: fences, each with a token, in the order in which everybody locks them."""

import functools
from collections.abc import Iterable, Iterator

from fencegate.core.names import check_lock_key
from fencegate.core.token import Token
from fencegate_adapters.sql.protect.naming import named


class Claims:
    """Fences by lock key, sorted. Whoever takes several takes them in this order, so that no two wait for each other.

    >>> list(Claims([("b", 7), ("a", 8)]))
    [('a', Token(8)), ('b', Token(7))]
    """

    def __init__(self, pairs: Iterable[tuple[str, int]]) -> None:
        tokens: dict[str, Token] = {}
        for lock_key, token in pairs:
            if tokens.setdefault(check_lock_key(lock_key), Token(token)) != token:
                raise TypeError(f"two leases of {lock_key!r} with different tokens: one of them is over")
        if not tokens:
            raise TypeError("fenced() needs at least one lease")
        self.tokens = dict(sorted(tokens.items(), key=lambda pair: pair[0].encode()))
        self.keys = [key.encode() for key in self.tokens]
        self.tokens_by_key = dict(zip(self.keys, map(int, self.tokens.values()), strict=True))
        self.lowest = min(self.tokens.values())
        key, token = next(iter(self.tokens_by_key.items()))
        self.only = [key, b"%d" % token] if len(self.keys) == 1 else None
        """Key and token, as PostgreSQL takes them, where there is one fence. (psycopg 3.2 takes a list only.)"""
        self.to_sqlite = [(bytearray(key), token) for key, token in self.tokens_by_key.items()]
        """What is given to `sqlite3`, which asks adapters about `bytes`: that takes as long as to look a row up."""
        self.named = named(self.tokens)
        """What the triggers of `fencegate protect` are told."""

    def __iter__(self) -> Iterator[tuple[str, Token]]:
        return iter(self.tokens.items())

    def __len__(self) -> int:
        return len(self.tokens)


@functools.lru_cache(maxsize=1024)
def claims(pairs: tuple[tuple[str, int], ...]) -> Claims:
    """The same ones again and again, mostly."""
    return Claims(pairs)
