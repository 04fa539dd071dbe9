"""Where the service is: the only place that a request can go to, whatever the request says."""

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from fencegate.core.errors import UnsafeConfiguration

_BASE = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,=:@-]+)*")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_UNREADABLE = re.compile(r"[\x00-\x20\x7f]")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Scheme, host, port, and the path that comes before every path of a caller."""

    scheme: str
    host: str
    port: int
    base: bytes

    @classmethod
    def parse(cls, name: str, url: str) -> Self:
        """Read the `url` of a resource; whatever could be read in two ways is refused."""

        def wrong(detail: str) -> UnsafeConfiguration:
            return UnsafeConfiguration(f"resource {name!r}: {detail}; write http://host:port/base")

        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise wrong("its url can't be read") from None
        if _UNREADABLE.search(url) is not None:  # some of it is taken for nothing, and read on behind it
            raise wrong("its url holds a blank or a control character")
        if parts.scheme not in _PORTS:
            raise wrong("its url is not one of http or https")
        if "@" in parts.netloc:
            raise wrong("its url must not hold a name or a password before an '@'")
        if "?" in url or "#" in url:
            raise wrong("its url must have no query and no fragment")
        if not parts.hostname or _HOST.fullmatch(parts.hostname) is None or port == 0:
            raise wrong("its url names no host")
        base = parts.path.rstrip("/")
        if _BASE.fullmatch(base) is None or not {".", ".."}.isdisjoint(base.split("/")):
            raise wrong("the path of its url must be plain segments, without '%', ';', '.' and '..'")
        return cls(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], base.encode())

    def target(self, below: bytes) -> bytes:
        """What is asked for: the path `below` the base, which is the base itself where that is empty or a query."""
        whole = self.base + below
        return whole if whole.startswith(b"/") else b"/" + whole

    @property
    def authority(self) -> bytes:
        """What goes into `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}").encode()
