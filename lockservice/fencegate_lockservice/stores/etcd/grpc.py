"""gRPC over HTTP/2 (RFC 9113), as little of it as etcd needs: many calls on one connection, and answers that go on.

etcd's JSON gateway, which is the same calls for those without gRPC, takes etcd several times the processor time of the
call itself, and a general gRPC client would be a large dependency for four calls.
"""

import asyncio
import struct
from typing import TYPE_CHECKING, Any, cast

from fencegate_lockservice.stores.etcd import headers
from fencegate_lockservice.stores.etcd.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

CONNECT_WITHIN_S = 2.0
MAX_ANSWER = 512 * 1024 * 1024
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM = _ACK = 1
_END_HEADERS, _PADDED, _PRIORITY = 4, 8, 32
_WINDOW = 1 << 30
_TELL_AFTER = 1 << 20
_FRAME = 16_384
_HEAD = struct.Struct(">IBI")
"""Before each frame: size and kind, flags, stream."""
_RECEIVED_AT_ONCE = 64 * 1024
_PONG_WITHIN_S = 0.02
_MAX_FRAME = 1 << 20
_LAST_STREAM = (1 << 31) - 3


class NotSent(Exception):
    """Nobody was there to send it to."""


class Cut(Exception):
    """It was sent, and no whole answer came."""


class Status(Exception):
    """The answer is a refusal: what gRPC says of it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Call:
    """A question under way: `answer` is its one answer; of a stream, the answers come through `told`."""

    __slots__ = ("answer", "consumed", "received", "told", "trailers", "unsent", "window")

    def __init__(self, answer: "asyncio.Future[bytes]", window: int) -> None:
        self.answer = answer
        self.told: Inbox | None = None
        self.trailers: dict[bytes, bytes] = {}
        self.received = bytearray()
        self.unsent: bytes | memoryview = b""
        self.window = window
        self.consumed = 0


class Connection(asyncio.BufferedProtocol):
    """One connection to one member."""

    def __init__(self, lost: "Callable[[Connection], None]") -> None:
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._room = memoryview(bytearray(_RECEIVED_AT_ONCE))  # of which asyncio's TLS takes slices, to write into
        self._begun = b""
        self._pongs: list[bytes] = []
        self._flushing: asyncio.TimerHandle | None = None
        self._writes = 0
        self._calls: dict[int, Call] = {}
        self._next_stream = 1
        self._window = self._first_window = 65_535
        self._consumed = 0
        self._block: tuple[int, int, bytes] | None = None
        self._why = "the connection is not in use any more"
        self.alive = False

    # --- what others call ---

    def ask(self, head: bytes, message: bytes, within_s: float) -> "Coroutine[Any, Any, bytes]":
        """The one answer to a question, which is sent at once. Cut when none comes in time, and then nothing more is
        asked of this line."""
        return self._answer(*self._begin(head, message), within_s)

    async def _answer(self, stream: int, call: Call, within_s: float) -> bytes:
        timer = asyncio.get_running_loop().call_later(within_s, self._give_up, stream, within_s)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self._drop(stream)
            raise
        finally:
            timer.cancel()

    def stream(self, head: bytes, message: bytes) -> Call:
        """A question whose answers go on; None in `told` means that they have ended, and `answer` then says why."""
        _, call = self._begin(head, message)
        call.told = Inbox()
        call.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return call

    def fail(self, why: str) -> None:
        """Cut the line."""
        if self.alive:
            self._why = why
        self.alive = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            _settle(call, Cut(why))
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, head: bytes, message: bytes) -> tuple[int, Call]:
        if self._next_stream > _LAST_STREAM:  # the numbers are used up: another line is made
            self.alive = False
            self._rest()
        if not self.alive:
            raise NotSent(self._why)
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        call = self._calls[stream] = Call(asyncio.get_running_loop().create_future(), self._first_window)
        framed = b"\0" + struct.pack(">I", len(message)) + message
        call.unsent = framed if len(framed) <= _FRAME else memoryview(framed)
        self._write(_frame(_HEADERS, _END_HEADERS, stream, head), *self._data(stream, call))
        return stream, call

    def _give_up(self, stream: int, within_s: float) -> None:
        call = self._calls.get(stream)
        if call is not None:
            _settle(call, Cut(f"no answer within {within_s:.0f} s"))
            self.alive = False
            self._drop(stream)

    def _drop(self, stream: int) -> None:
        """Nobody waits for this any more."""
        if self._calls.pop(stream, None) is not None:
            self._write(_frame(_RST_STREAM, 0, stream, b"\0\0\0\x08"))
        self._rest()

    def _rest(self) -> None:
        if not self.alive and not self._calls and self._transport is not None:
            self._transport.abort()

    def _data(self, stream: int, call: Call) -> "list[bytes]":
        """As much of a question as the other side has room for."""
        found = []
        while call.unsent and (room := min(self._window, call.window, _FRAME)) > 0:
            part, call.unsent = call.unsent[:room], call.unsent[room:]
            self._window -= len(part)
            call.window -= len(part)
            found.append(_frame(_DATA, 0 if call.unsent else _END_STREAM, stream, part))
        return found

    def _write(self, *frames: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            pongs, self._pongs = self._pongs, []
            self._writes += 1
            self._transport.write(b"".join((*pongs, *frames)))

    def _pong(self, payload: bytes) -> None:
        """Goes with what is written next, if that is soon: a server that measures the line pings with each answer, and
        each write of its own would wake it up."""
        self._pongs.append(_frame(_PING, _ACK, 0, payload))
        if self._flushing is None:
            self._flush_later()

    def _flush_later(self) -> None:
        self._flushing = asyncio.get_running_loop().call_later(_PONG_WITHIN_S, self._flush, self._writes)

    def _flush(self, writes: int) -> None:
        self._flushing = None
        if self._pongs and self._writes == writes:
            self._write()
        elif self._pongs:  # they came after a write, and the next may be as near
            self._flush_later()

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.alive = True
        # no header table, no pushes, room for answers, large frames
        settings = struct.pack(">HIHIHIHI", 1, 0, 2, 0, 4, _WINDOW, 5, _MAX_FRAME)
        more = struct.pack(">I", _WINDOW - 65_535)
        self._write(_PREFACE, _frame(_SETTINGS, 0, 0, settings), _frame(_WINDOW_UPDATE, 0, 0, more))

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all that comes: asyncio would map a quarter of a megabyte anew for each answer, and unmap it."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        data = self._begun + bytes(self._room[:nbytes])
        at, end = 0, len(data)
        try:
            while end - at >= 9:
                head, flags, stream = _HEAD.unpack_from(data, at)
                size = head >> 8
                if size > _MAX_FRAME:
                    raise ValueError("a frame is too large")
                if end - at < 9 + size:
                    break
                self._heard(head & 0xFF, flags, stream & 0x7FFFFFFF, data[at + 9 : at + 9 + size])
                at += 9 + size
        except (ValueError, IndexError, struct.error) as error:
            self.fail(f"it does not speak HTTP/2: {error}")
            return
        self._begun = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(str(error) if error else "the connection was closed")
        self._lost(self)

    # --- frames ---

    def _heard(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            self._heard_data(stream, flags, payload)
        elif kind == _HEADERS:
            if flags & _PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            if flags & _PRIORITY:
                payload = payload[5:]
            self._heard_headers(stream, flags, payload, flags & _END_HEADERS)
        elif kind == _CONTINUATION and self._block is not None:
            stream, first, before = self._block
            self._heard_headers(stream, first, before + payload, flags & _END_HEADERS)
        elif kind == _SETTINGS and not flags & _ACK:
            self._heard_settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._pong(payload)
        elif kind == _WINDOW_UPDATE:
            self._heard_window(stream, int.from_bytes(payload, "big") & 0x7FFFFFFF)
        elif kind == _RST_STREAM:
            self._end(stream, Cut(f"the call was reset ({int.from_bytes(payload, 'big')})"))
        elif kind == _GOAWAY:
            self._heard_goaway(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF)

    def _heard_data(self, stream: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        if flags & _PADDED:
            payload = payload[1 : size - payload[0]]
        self._consumed += size
        updates = []
        if self._consumed > _TELL_AFTER:
            updates.append(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._consumed)))
            self._consumed = 0
        call = self._calls.get(stream)
        if call is not None:
            call.consumed += size
            if call.consumed > _TELL_AFTER:
                updates.append(_frame(_WINDOW_UPDATE, 0, stream, struct.pack(">I", call.consumed)))
                call.consumed = 0
            call.received += payload
            if len(call.received) > MAX_ANSWER:
                raise ValueError("an answer is too large")
            if call.told is not None:
                for message in _messages(call.received):
                    call.told.put(message)
        if updates:
            self._write(*updates)
        if flags & _END_STREAM:
            self._end(stream, Cut("the answer has no status"))

    def _heard_headers(self, stream: int, flags: int, block: bytes, whole: int) -> None:
        if not whole:
            if len(block) > _MAX_FRAME:
                raise ValueError("its headers are too large")
            self._block = (stream, flags, block)
            return
        self._block = None
        call = self._calls.get(stream)
        found = headers.decode(block)
        if call is not None:
            call.trailers.update(found)
        if flags & _END_STREAM:
            self._end(stream, None)

    def _heard_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            number, value = struct.unpack_from(">HI", payload, at)
            if number == 4:
                for call in self._calls.values():
                    call.window += value - self._first_window
                self._first_window = value
        self._write(_frame(_SETTINGS, _ACK, 0, b""))
        self._pump()

    def _heard_window(self, stream: int, more: int) -> None:
        if stream == 0:
            self._window += more
        elif stream in self._calls:
            self._calls[stream].window += more
        self._pump()

    def _pump(self) -> None:
        frames = [frame for stream, call in self._calls.items() if call.unsent for frame in self._data(stream, call)]
        if frames:
            self._write(*frames)

    def _heard_goaway(self, last: int) -> None:
        """What came after `last` was not looked at."""
        self.alive = False
        for stream in [stream for stream in self._calls if stream > last]:
            self._end(stream, NotSent("the server is going away"))
        self._rest()

    def _end(self, stream: int, error: Exception | None) -> None:
        call = self._calls.pop(stream, None)
        if call is None:
            return
        status = call.trailers.get(b"grpc-status")
        if status is None:
            code = call.trailers.get(b":status", b"none").decode("ascii", "replace")
            _settle(call, error or Cut(f"it is no gRPC (HTTP status {code})"))
        elif status != b"0":
            message = call.trailers.get(b"grpc-message", b"").decode("utf-8", "replace")
            _settle(call, Status(int(status), message))
        else:
            found = list(_messages(call.received))
            _settle(call, found[0] if found else Cut("the answer is empty"))
        self._rest()


def _settle(call: Call, result: bytes | Exception) -> None:
    if not call.answer.done():
        if isinstance(result, bytes):
            call.answer.set_result(result)
        else:
            call.answer.set_exception(result)
            call.answer.exception()  # whoever asked may be gone
    if call.told is not None:
        call.told.put(None)


def _messages(received: bytearray) -> "list[bytes]":
    """Whole messages, which are taken out."""
    found = []
    at = 0
    while len(received) - at >= 5:
        end = at + 5 + int.from_bytes(received[at + 1 : at + 5], "big")
        if end > len(received):
            break
        if received[at]:
            raise ValueError("a message is compressed")
        found.append(bytes(received[at + 5 : end]))
        at = end
    del received[:at]
    return found


def _frame(kind: int, flags: int, stream: int, payload: bytes | memoryview) -> bytes:
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload
