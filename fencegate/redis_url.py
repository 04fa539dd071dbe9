"""What a Redis URL says, for stores and resources: where the server is, as whom to speak to it, and which keys."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fencegate.core.names import repeats_an_option

MAX_PREFIX_BYTES = 128
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


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
    files: Mapping[str, str]
    """Those of certificates, as redis-py names them."""
    options: Mapping[str, str]
    """What else the URL says."""

    def __str__(self) -> str:
        """How it is named in what is logged and told: without the password."""
        return f"Redis at {self.host}:{self.port}"


def parse(url: str, further: Sequence[str] = ()) -> Address:
    """redis://[[USER]:PASSWORD@]HOST[:PORT][/DB][?prefix=P], or rediss:// for TLS, and the further options that are
    named. ValueError, which tells nothing of a password."""
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:  # its text may hold a part of the URL, and that the password
        raise ValueError("it can't be read (escape special characters in the password as %XX)") from None
    if parts.scheme not in ("redis", "rediss"):
        raise ValueError("it must begin with redis:// or rediss://")
    if not parts.hostname or "," in parts.netloc.rpartition("@")[2]:
        raise ValueError("it must name one host")
    if repeats_an_option(url):
        raise ValueError("it gives an option twice; give each of them once")
    known = ("prefix", *further, *_FILES)
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"the option {unknown[0]!r} is not known; there are {', '.join(known)}")
    files = {name: options[name] for name in _FILES if name in options}
    return Address(
        parts.hostname,
        port,
        _db(parts),
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        _prefix(options.get("prefix", "")),
        _tls(parts.scheme, files),
        files,
        {name: options[name] for name in further if name in options},
    )


def _db(parts: SplitResult) -> int:
    path = parts.path.strip("/")
    if parts.fragment or not (path == "" or (path.isascii() and path.isdigit() and len(path) <= 5)):
        raise ValueError("what follows the host must be the number of a database, such as /0")
    return int(path or 0)


def _prefix(text: str) -> str:
    if len(text.encode(errors="replace")) > MAX_PREFIX_BYTES or not text.isprintable():
        raise ValueError(f"the prefix must be at most {MAX_PREFIX_BYTES} printable bytes")
    return text


def _tls(scheme: str, files: Mapping[str, str]) -> ssl.SSLContext | None:
    if scheme == "redis":
        if files:
            raise ValueError(f"{next(iter(files))} is for rediss://")
        return None
    if "ssl_keyfile" in files and "ssl_certfile" not in files:
        raise ValueError("ssl_keyfile goes with ssl_certfile")
    try:
        context = ssl.create_default_context(cafile=files.get("ssl_ca_certs"))
        if "ssl_certfile" in files:
            context.load_cert_chain(files["ssl_certfile"], files.get("ssl_keyfile"))
    except OSError as error:
        raise ValueError(f"its certificates can't be used: {error}") from None
    return context
