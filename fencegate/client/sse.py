"""Reading server-sent events, piece by piece, as far as `/v1/watch` uses them."""

from collections.abc import Iterator

from fencegate.client.transport import Heard

MAX_BYTES = 1 << 20
MAX_FIELDS = 16


class EventReader:
    """Fed with the bytes of a stream; gives what was told, and each move of the place without an event."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._id: int | None = None
        self._fields: dict[bytes, bytes] = {}

    def feed(self, part: bytes) -> Iterator[Heard]:
        """ValueError when this is no stream of ours."""
        self._rest += part
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        for line in lines:
            if line.strip(b"\r"):
                name, _, value = bytes(line.rstrip(b"\r")).partition(b":")
                self._fields[name] = value.removeprefix(b" ")
                continue
            heard = self._heard()
            if heard is not None:
                yield heard
        if len(self._rest) > MAX_BYTES or len(self._fields) > MAX_FIELDS:
            raise ValueError("an event without an end")

    def _heard(self) -> Heard | None:
        fields, self._fields = self._fields, {}
        if b"id" in fields:
            self._id = int(fields[b"id"])
        if self._id is None or not (b"data" in fields or b"id" in fields):
            return None  # a comment, or something that can't be resumed
        data = fields.get(b"data", b"")
        return self._id, fields.get(b"event", b"").decode() if data else "", data
