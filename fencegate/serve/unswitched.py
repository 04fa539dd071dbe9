"""httptools' parser, for a server that never switches protocols.

A client may offer another protocol with any request (`Upgrade: h2c`, as Java's own does over plain HTTP), and an offer
that is not taken up changes nothing (RFC 9110, 7.8). httptools ends such a request at its head all the same: its body
would be lost, an empty one be taken for it, and its bytes be read as the next request. So a new parser goes on from
there, which is told in a head of ours, without the offer, how long the body is.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser


class Unswitched:
    """`framing` gives the headers that say how long the body of the current request is; empty when it has none."""

    def __init__(self, protocol: object, framing: Callable[[], bytes]) -> None:
        self._protocol = protocol
        self._parser = _parser(protocol)
        self._framing = framing
        self.repeating = False
        """Whether what the parser tells of is the head of ours."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    @property
    def ends_too_early(self) -> bool:
        """Whether the end of the request that the parser tells of is only that of its head."""
        return bool(self._parser.should_upgrade() and self._framing())

    def feed_data(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except HttpParserUpgrade as offered:
                data = data[offered.args[0] :]
                self._go_on()
            else:
                return

    def _go_on(self) -> None:
        framing = self._framing()
        if framing:
            # After a request that is the last one of its connection a parser takes nothing more; nor must the new one.
            last = b"" if self._parser.should_keep_alive() else b"Connection: close\r\n"
            self._parser = _parser(self._protocol)
            self.repeating = True
            try:
                self._parser.feed_data(b"POST / HTTP/1.1\r\n%b%b\r\n" % (framing, last))
            finally:
                self.repeating = False


def _parser(protocol: object) -> Any:
    """As uvicorn has it."""
    parser = HttpRequestParser(protocol)
    with suppress(AttributeError):  # before httptools 0.6.3
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
