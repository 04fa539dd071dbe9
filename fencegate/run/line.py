"""What the holder and the guard tell each other: lines of JSON over a socket that dies with either of them."""

import socket
from collections.abc import Mapping

import msgspec


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Start(_Message, frozen=True):
    """Holder to guard: the lock is held, so start the command."""

    variables: Mapping[str, str]
    deadline_us: int
    ttl_us: int
    grace_us: int
    foreground: bool
    """Whether the command gets the terminal."""


class Deadline(_Message, frozen=True):
    """Holder to guard: a renewal succeeded."""

    deadline_us: int


class Stop(_Message, frozen=True):
    """Holder to guard: the lock is lost, or being taken away, so end the command."""

    deadline_us: int | None = None
    """When it will be taken, if that is still to come."""


class Pass(_Message, frozen=True):
    """Holder to guard: pass this signal on."""

    signal: int


class Started(_Message, frozen=True):
    """Guard to holder: the command runs; its process id is also that of its group."""

    pid: int


class Failed(_Message, frozen=True):
    """Guard to holder: the command could not be started."""

    errno: int
    why: str


class Late(_Message, frozen=True):
    """Guard to holder: the lease had run out before the command could be started; it was not."""


class Paused(_Message, frozen=True):
    """Guard to holder: the command was stopped by this signal, and may be continued."""

    signal: int


class Ended(_Message, frozen=True):
    """Guard to holder: the command and its group are gone."""

    code: int
    """As a shell tells it: 128 + n for signal n."""
    stopped: bool
    """Whether it was ended for want of the lock."""
    cleared: bool = False
    """Whether it left processes behind that had to be ended."""


Message = Start | Deadline | Stop | Pass | Started | Failed | Late | Paused | Ended

_decoder: "msgspec.json.Decoder[Message]" = msgspec.json.Decoder(Message)


class Line:
    """One end of the line. It never blocks: whoever is paused at the other end must not hold us up.

    Not an asyncio stream: that stops reading when a write fails, and so would lose the guard's last word whenever it
    crosses with ours.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self.is_closed = False
        """Whether the other end is gone, and all that it said was read."""
        self._unread = b""

    def tell(self, message: Message) -> None:
        try:
            self.socket.send(msgspec.json.encode(message) + b"\n")
        except OSError:  # gone, or too far behind to matter
            return

    def read(self) -> list[Message]:
        """What was said since."""
        while not self.is_closed:
            try:
                read = self.socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                read = b""
            self._unread += read
            self.is_closed = not read
        *lines, self._unread = self._unread.split(b"\n")
        return [_decoder.decode(line) for line in lines]

    def close(self) -> None:
        self.socket.close()
