"""The fencing token: the integer that orders the grants of a lock key."""

import re
from typing import Self

from fencegate.core.errors import InvalidToken

MAX_TOKEN = 2**63 - 1

# int() takes '1_000', '+5', ' 7 ' and Arabic digits; a token is none of these.
_WIRE = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


class Token(int):
    """An integer from 1 to 2^63-1; a decimal string in JSON and in headers.

    >>> Token.parse("34") < Token(35)
    True
    """

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        if type(value) is cls:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKEN:
            raise InvalidToken("a fencing token is a whole number from 1 to 2^63-1")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the wire form, strictly: plain ASCII digits, no sign, no leading zero."""
        if _WIRE.fullmatch(text) is None:
            raise InvalidToken("a fencing token is 1 to 2^63-1 in plain ASCII digits, without sign or leading zero")
        return cls(int(text))

    @property
    def wire(self) -> str:
        return int.__repr__(self)

    def __repr__(self) -> str:
        return f"Token({int.__repr__(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)


def token_headers(shown: str, lock_key: str) -> dict[str, str]:
    """The headers that show a token to a resource, and the lock that it is of.

    A lock key that a header can't hold as it is stays away; the resource knows its guard all the same.
    """
    if lock_key.isascii() and lock_key.isprintable() and lock_key == lock_key.strip():
        return {"Fencing-Token": shown, "Fencing-Lock": lock_key}
    return {"Fencing-Token": shown}
