"""What the URL of a Redis resource says: where the server is, as whom to speak to it, and which keys are meant."""

import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.names import repeats_an_option
from fencegate_adapters.redis.names import OURS

MAX_PREFIX_BYTES = 128
MAX_REPLICAS = 9
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS = ("prefix", "replicas", *_FILES)


@dataclass(frozen=True, slots=True)
class Address:
    """See the head of this file."""

    host: str
    port: int
    db: int
    prefix: str
    replicas: int
    """How many replicas must have a write before it is acknowledged."""
    tls: bool
    secrets: dict[str, Any] = field(repr=False)
    """User, password and files of certificates, as redis-py names them."""

    def __str__(self) -> str:
        """How it is named in what is logged and told: without the password."""
        return f"Redis at {self.host}:{self.port}"


def parse(resource: str, url: str) -> Address:
    """redis://[[USER]:PASSWORD@]HOST[:PORT][/DB][?prefix=P&replicas=N], or rediss:// for TLS."""
    try:
        return _parse(url)
    except ValueError as error:
        raise UnsafeConfiguration(f"resource {resource!r}: its url can't be used: {error}") from None


def _parse(url: str) -> Address:
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
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise ValueError(f"the option {unknown[0]!r} is not known; there are {', '.join(_OPTIONS)}")
    secrets = _credentials(parts) | _certificates(parts.scheme, options)
    prefix, replicas = _prefix(options.get("prefix", "")), _replicas(options.get("replicas", "0"))
    return Address(parts.hostname, port, _db(parts), prefix, replicas, parts.scheme == "rediss", secrets)


def _credentials(parts: SplitResult) -> dict[str, str]:
    given = {"username": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    return {name: text for name, text in given.items() if text}


def _certificates(scheme: str, options: dict[str, str]) -> dict[str, str]:
    given = {name: options[name] for name in _FILES if name in options}
    if given and scheme == "redis":
        raise ValueError(f"{next(iter(given))} is for rediss://")
    if scheme == "rediss":
        try:
            context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"))
            if "ssl_certfile" in given:
                context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"))
        except OSError as error:
            raise ValueError(f"its certificates can't be used: {error}") from None
    return given


def _prefix(text: str) -> str:
    if len(text.encode(errors="replace")) > MAX_PREFIX_BYTES or not text.isprintable():
        raise ValueError(f"the prefix must be at most {MAX_PREFIX_BYTES} printable bytes")
    if text.startswith(OURS):
        raise ValueError(f"the prefix {OURS!r} belongs to Fencegate itself")
    return text


def _replicas(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= MAX_REPLICAS):
        raise ValueError(f"replicas must be a whole number from 0 to {MAX_REPLICAS}")
    return int(text)


def _db(parts: SplitResult) -> int:
    path = parts.path.strip("/")
    if parts.fragment or not (path == "" or (path.isascii() and path.isdigit() and len(path) <= 5)):
        raise ValueError("what follows the host must be the number of a database, such as /0")
    return int(path or 0)
