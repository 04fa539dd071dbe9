"""What a Redis URL says: where the server is, as whom to speak to it, and what to put before all keys."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fencegate.core.errors import UnsafeConfiguration

MAX_PREFIX_BYTES = 128
_OPTIONS = ("prefix", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class Address:
    """See the head of this file."""

    host: str
    port: int
    db: int
    username: str
    password: str = field(repr=False)
    prefix: str
    tls: ssl.SSLContext | None = field(repr=False)

    def __str__(self) -> str:
        """How it is named in what is logged and told: without the password."""
        return f"Redis at {self.host}:{self.port}"


def parse(url: str) -> Address:
    """redis://[[USER]:PASSWORD@]HOST[:PORT][/DB][?prefix=P], or rediss:// for TLS."""
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:  # its text may hold a part of the URL, and that the password
        raise _bad("it can't be read (escape special characters in the password as %XX)") from None
    if parts.scheme not in ("redis", "rediss"):
        raise _bad("it must begin with redis:// or rediss://")
    if not parts.hostname or "," in parts.netloc.rpartition("@")[2]:
        raise _bad("it must name one host")
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise _bad(f"the option {unknown[0]!r} is not known; there are {', '.join(_OPTIONS)}")
    prefix = options.get("prefix", "")
    if len(prefix.encode(errors="replace")) > MAX_PREFIX_BYTES or not prefix.isprintable():
        raise _bad(f"the prefix must be at most {MAX_PREFIX_BYTES} printable bytes")
    return Address(
        parts.hostname,
        port,
        _db(parts),
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        prefix,
        _tls(parts.scheme, options),
    )


def _db(parts: SplitResult) -> int:
    path = parts.path.strip("/")
    if parts.fragment or not (path == "" or (path.isascii() and path.isdigit() and len(path) <= 5)):
        raise _bad("what follows the host must be the number of a database, such as /0")
    return int(path or 0)


def _tls(scheme: str, options: Mapping[str, str]) -> ssl.SSLContext | None:
    if scheme == "redis":
        if given := [name for name in options if name.startswith("ssl_")]:
            raise _bad(f"{given[0]} is for rediss://")
        return None
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise _bad("ssl_keyfile goes with ssl_certfile")
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    except OSError as error:
        raise _bad(f"its certificates can't be used: {error}") from None
    return context


def _bad(why: str) -> UnsafeConfiguration:
    return UnsafeConfiguration(f"the URL of the Redis store can't be used: {why}")
