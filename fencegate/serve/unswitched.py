"""httptools' parser, for a server that never switches protocols.

A client may offer another protocol with any request (`Upgrade: h2c`, as Java's own does over plain HTTP), and an offer
that is not taken up changes nothing (RFC 9110, 7.8). httptools ends such a request at its head all the same: its body
would be lost, an empty one be taken for it, and its bytes be read as the next request. So the parser is told once more,
in a head of ours without the offer, how long the body is.
"""

from collections.abc import Callable
from typing import Any

from httptools import HttpParserUpgrade


class Unswitched:
    """`framing` gives the headers that say how long the body of the current request is; empty when it has none."""

    def __init__(self, parser: Any, framing: Callable[[], bytes]) -> None:
        self._parser = parser
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
                self._repeat_head()
            else:
                return

    def _repeat_head(self) -> None:
        framing = self._framing()
        if framing:
            self.repeating = True
            try:
                self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)
            finally:
                self.repeating = False
