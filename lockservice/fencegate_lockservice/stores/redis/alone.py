"""A commit that goes alone to Redis, of the commonest kind, as alone.lua is given it."""

from collections.abc import Sequence

from fencegate.core.model import DONE, LOCKS
from fencegate.core.ports import Change
from fencegate_lockservice.stores.redis import log as redis_log

_LOCKS, _DONE = len(LOCKS), len(DONE)


class Alone:
    """Packs them. `writer` is packed already."""

    def __init__(self, sha: str, prefix: str, writer: str) -> None:
        self._prefix = prefix
        self._writer = writer
        script = f"$7\r\nEVALSHA\r\n${len(sha)}\r\n{sha}\r\n"
        self._one = f"*9\r\n{script}$1\r\n1\r\n"
        self._two = f"*12\r\n{script}$1\r\n2\r\n"

    def pack(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> bytes | None:
        """None when it is of another kind. ValueError when a name is no text."""
        key, expected, version, value, compare_only, keep_until_us = changes[-1]
        if expected is None or value is None or compare_only or keep_until_us is not None:
            return None
        if not log or not key.startswith(LOCKS):
            return None
        if len(changes) == 1:
            head, done, end = self._one, "", b"\r\n"
        elif len(changes) == 2 and (settled := _settled(changes[0])) is not None:
            head, done, end = self._two, self._named(f"done:{changes[0].key[_DONE:]}"), settled
        else:
            return None
        lock, by, lines = self._named(f"lock:{key[_LOCKS:]}"), f"{not_after_us}", redis_log.encode(log)
        return b"".join(
            (
                f"{head}{lock}{done}{self._writer}${len(by)}\r\n{by}\r\n"
                f"${len(expected) + 1}\r\n{expected}\n\r\n${len(lines)}\r\n".encode(),
                lines,
                f"\r\n${len(version) + 1 + len(value)}\r\n{version}\n".encode(),
                value,
                end,
            )
        )

    def _named(self, name: str) -> str:
        name = self._prefix + name
        return f"${len(name) if name.isascii() else len(name.encode())}\r\n{name}\r\n"


def _settled(change: Change) -> bytes | None:
    """What is written of a request that nothing is known of; None when it is no such change."""
    key, expected, version, value, compare_only, keep_until_us = change
    if expected is not None or value is None or compare_only or keep_until_us is None or not key.startswith(DONE):
        return None
    until = f"{-(-keep_until_us // 1000)}"
    head = f"\r\n${len(version) + 1 + len(value)}\r\n{version}\n".encode()
    return b"%b%b\r\n$%d\r\n%b\r\n" % (head, value, len(until), until.encode())
