"""Log lines as the value of a log key: who wrote them, and then each line's key and event (MessagePack).

Whoever follows the log is told all that it wrote itself, too. The name at the front says so without reading on.
"""

from collections.abc import Sequence

import msgspec

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, list[tuple[str, bytes]]]).decode


class Lines:
    """The lines of one writer, among those of others."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self.own = _encode((writer, ()))[:-1]
        """How a value of this writer begins, and no other."""

    def stored(self, log: Sequence[tuple[str, bytes]]) -> bytes:
        return _encode((self._writer, log))

    @staticmethod
    def read(value: bytes) -> list[tuple[str, bytes]]:
        """ValueError when somebody else has written that."""
        return _decode(value)[1]
