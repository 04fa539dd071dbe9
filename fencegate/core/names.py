"""Names that come from outside: lock keys, owners, and the guard that tells which lock protects a key."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl

from fencegate.core.errors import InvalidInput, UnsafeConfiguration

MAX_LOCK_KEY_BYTES = 1024
MAX_ID_BYTES = 256

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\U0010ffff]")
_HOLE = re.compile(r"\{([^{}]*)\}")

FORMS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "str": (re.compile(r".+", re.DOTALL), "a text"),
    "int": (re.compile(r"0|[1-9][0-9]{0,38}", re.ASCII), "a whole number without sign or leading zeros"),
    "uuid": (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "a UUID in lower case, with hyphens"),
}
"""How a segment of a path may be spelt, by the name of its form. A service that makes a number of `007` writes account
7; the lock of `007` must not let anybody in there."""


@lru_cache(maxsize=4096)  # the same few names are shown again and again
def check_text(field_name: str, text: str, max_bytes: int = MAX_ID_BYTES) -> str:
    """A non-empty name of bounded length without control characters."""
    if not isinstance(text, str):  # programs are not always type-checked
        raise InvalidInput(field_name, "must be a string")
    if not text:
        raise InvalidInput(field_name, "must not be empty")
    if len(text) > max_bytes or (not text.isascii() and len(text.encode(errors="replace")) > max_bytes):
        raise InvalidInput(field_name, f"must be at most {max_bytes} bytes")
    if _CONTROL.search(text) is not None:
        raise InvalidInput(field_name, "must not hold control characters")
    return text


@lru_cache(maxsize=4096)
def check_path(field_name: str, text: str, max_bytes: int = MAX_LOCK_KEY_BYTES) -> str:
    """A name whose `/` separate segments, none of which is empty, `.` or `..`: `a` and `a/` are not two names."""
    check_text(field_name, text, max_bytes)
    if "/" in text or text in (".", ".."):
        for segment in text.split("/"):
            if segment in ("", ".", ".."):
                raise InvalidInput(field_name, "must not have an empty, '.' or '..' segment")
    return text


def check_form(field_name: str, text: str, form: str) -> str:
    """A segment in the one spelling that its form allows."""
    pattern, what = FORMS[form]
    if pattern.fullmatch(text) is None:
        raise InvalidInput(field_name, f"must be {what}")
    return text


def check_lock_key(text: str, field_name: str = "lockKey") -> str:
    return check_path(field_name, text)


def repeats_an_option(url: str) -> bool:
    """Whether the query of a URL gives an option twice: who wrote both meant one, and nobody can tell which."""
    given = [name for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)]
    return len(set(given)) < len(given)


def namespace(lock_key: str) -> str:
    """The part of a lock key before the first `:`."""
    return lock_key.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Guard:
    """The rule that tells which lock key protects a resource's key.

    >>> Guard("acct:{tenant}", "accounts", ("tenant", "id")).lock_key(("acme", "7"))
    'acct:acme'
    """

    template: str
    resource: str
    columns: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        allowed = {"resource", "key", *self.columns}
        for hole in _HOLE.findall(self.template):
            if hole not in allowed:
                raise UnsafeConfiguration(
                    f"resource {self.resource!r}: the guard {self.template!r} names {{{hole}}}, "
                    f"but only {', '.join('{' + name + '}' for name in sorted(allowed))} can be filled in"
                )
        if not {"{", "}"}.isdisjoint(_HOLE.sub("", self.template)):
            raise UnsafeConfiguration(f"resource {self.resource!r}: unbalanced braces in the guard {self.template!r}")
        try:
            self.filled(dict.fromkeys(self.columns, "x"), "x")
        except InvalidInput as error:  # else it would be found out by every call, and no key could ever be written
            why = error.detail.partition(": ")[2]
            raise UnsafeConfiguration(
                f"resource {self.resource!r}: the guard {self.template[:64]!r} is no lock key: {why}"
            ) from None

    @property
    def covers_all(self) -> bool:
        """Whether one lock guards every key of the resource."""
        return all(hole == "resource" for hole in _HOLE.findall(self.template))

    def lock_key(self, key: tuple[str, ...] = ()) -> str:
        return self.filled(dict(zip(self.columns, key, strict=False)), "/".join(key))

    def filled(self, values: Mapping[str, str], key: str) -> str:
        """The lock key, when the columns have these values and the whole key reads `key`."""
        known = {**values, "resource": self.resource, "key": key}
        return check_lock_key(_HOLE.sub(lambda hole: known[hole[1]], self.template), "key")
