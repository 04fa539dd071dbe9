"""Commands of Redis as a holder may give them: which words they are made of, and how their answers are read."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fencegate.core.errors import InvalidInput
from fencegate_adapters.redis.names import OURS

Name = str | bytes
Value = str | bytes | int | float
T = TypeVar("T")

MAX_WORDS = 4000
"""The stack of Lua is small."""
_SURROGATE = re.compile("[\ud800-\udfff]")

# All of these have one key, as their first argument; a key that we don't know of could be one of ours.
# fmt: off
ONE_KEY = frozenset(
    {"APPEND", "BITFIELD", "DECRBY", "EXISTS", "EXPIRE", "EXPIREAT", "GEOADD", "GET", "GETDEL", "GETEX",
     "GETRANGE", "GETSET", "HDEL", "HEXISTS", "HGET", "HGETALL", "HINCRBY", "HINCRBYFLOAT", "HKEYS", "HLEN",
     "HMGET", "HSET", "HSETNX", "HVALS", "INCRBY", "INCRBYFLOAT", "LINDEX", "LINSERT", "LLEN", "LPOP", "LPUSH",
     "LPUSHX", "LRANGE", "LREM", "LSET", "LTRIM", "PERSIST", "PEXPIRE", "PEXPIREAT", "PFADD", "PSETEX", "PTTL",
     "RPOP", "RPUSH", "RPUSHX", "SADD", "SCARD", "SET", "SETBIT", "SETEX", "SETNX", "SETRANGE", "SISMEMBER",
     "SMEMBERS", "SPOP", "SREM", "STRLEN", "TTL", "TYPE", "XADD", "XDEL", "XLEN", "XRANGE", "XTRIM", "ZADD",
     "ZCARD", "ZINCRBY", "ZPOPMAX", "ZPOPMIN", "ZRANGE", "ZREM", "ZREMRANGEBYLEX", "ZREMRANGEBYRANK",
     "ZREMRANGEBYSCORE", "ZSCORE"}
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """The words of a command, and what its answer means."""

    words: tuple[Value, ...]
    read: Callable[[Any], T]


def any_(name: str, key: Name, *arguments: Value) -> Command[Any]:
    word = name.upper()
    if word not in ONE_KEY:
        raise InvalidInput("command", f"{name[:32]!r} is not one that can be fenced here")
    return _command(lambda answer: answer, word, _own(key), *arguments)


def get(key: Name) -> Command[Any]:
    return any_("GET", key)


def set_(key: Name, value: Value, ex: int | None, px: int | None, nx: bool, xx: bool, keepttl: bool) -> Command[bool]:
    options: list[Value] = []
    if ex is not None:
        options += ["EX", ex]
    if px is not None:
        options += ["PX", px]
    options += [word for word, wanted in (("NX", nx), ("XX", xx), ("KEEPTTL", keepttl)) if wanted]
    return _command(lambda answer: answer is not None, "SET", _own(key), value, *options)


def delete(keys: tuple[Name, ...]) -> Command[int]:
    if not keys:
        raise InvalidInput("keys", "must not be empty")
    return _command(int, "DEL", *map(_own, keys))


def hset(key: Name, mapping: Mapping[str, Value]) -> Command[int]:
    if not mapping:
        raise InvalidInput("mapping", "must not be empty")
    return _command(int, "HSET", _own(key), *(word for pair in mapping.items() for word in pair))


def hgetall(key: Name) -> Command[dict[Any, Any]]:
    def read(flat: list[Any]) -> dict[Any, Any]:
        return dict(zip(flat[::2], flat[1::2], strict=True))

    return _command(read, "HGETALL", _own(key))


def counting(name: str, key: Name, *arguments: Value) -> Command[int]:
    return _command(int, name, _own(key), *arguments)


def deciding(name: str, key: Name, *arguments: Value) -> Command[bool]:
    return _command(bool, name, _own(key), *arguments)


def _own(key: Name) -> Name:
    """A key of the caller's own."""
    text = key if isinstance(key, bytes) else key.encode(errors="surrogatepass")
    if text.startswith(OURS.encode()):
        raise InvalidInput("key", f"what begins with {OURS!r} belongs to Fencegate itself")
    return text


def _command(read: Callable[[Any], T], *words: Value) -> Command[T]:
    if len(words) > MAX_WORDS:
        raise InvalidInput("command", f"has over {MAX_WORDS} words: give it in parts")
    for word in words:
        _check_spelling(word)
    return Command(words, read)


def _check_spelling(word: Value) -> None:
    """The client would find out itself what it can't send, but when the outcome is thought to be unknown already."""
    if isinstance(word, bool) or not isinstance(word, str | bytes | memoryview | int | float):
        raise InvalidInput("command", f"can't be made of a {type(word).__name__}: make it a string or a number")
    if isinstance(word, str) and not word.isascii() and _SURROGATE.search(word) is not None:
        raise InvalidInput("command", "has half of a surrogate pair in it, which is no character")
