"""One request about a protected resource, and what is known of its fence so far."""

from fencegate.core.ports import Key, Seen
from fencegate.web.asgi import Headers, Request


class Call:
    """Filled in step by step; whatever is known when the answer goes out is told in its headers."""

    __slots__ = ("fence", "key", "mark", "request", "shadow", "token", "tokenless")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.key: Key = ()
        self.fence = ""
        self.token: int | None = None
        self.mark: int | None = None
        self.shadow = False
        self.tokenless = False
        """Without a token, or with one that is worth nothing here, which shadow mode lets through."""

    def saw(self, seen: Seen) -> None:
        self.mark = seen.mark
        self.shadow = self.tokenless or seen.shadow is not None

    @property
    def key_text(self) -> str | None:
        return "/".join(self.key) or None

    def headers(self) -> Headers:
        found: Headers = []
        if self.mark is not None:
            found.append((b"fencing-token-highest", b"%d" % self.mark))
        if self.shadow:
            found.append((b"fencing-shadow", b"would-refuse"))
        return found
