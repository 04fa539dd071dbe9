"""The URL of a redlock store: `redlock://[USER:PASSWORD@]A:PORT,B:PORT,…[/DB][?prefix=&names=&tls=true]`."""

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from fencegate.core.errors import UnsafeConfiguration

DEFAULT_PORT = 6379
MAX_NODES = 9
EXAMPLE = "redlock://A:PORT,B:PORT,C:PORT,D:PORT,E:PORT"


@dataclass(frozen=True, slots=True)
class Seat:
    """A node of the store, by the name that all lock services know it by, and where this one finds it."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Seats in the order of their names, so that every lock service has the same order."""

    seats: tuple[Seat, ...]
    database: int = 0
    prefix: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False


def parse(url: str) -> Settings:
    """UnsafeConfiguration when the URL can't be used; what it says never holds the password."""
    try:
        parts = urlsplit(url)
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        addresses = [_address(text) for text in hosts.split(",")]
        database = _database(parts.path.strip("/"))
    except ValueError:
        raise UnsafeConfiguration(f"a redlock URL can't be read; write it as {EXAMPLE}") from None
    unknown = set(options) - {"prefix", "names", "tls"}
    if unknown or parts.fragment:
        raise UnsafeConfiguration("a redlock URL may have the options prefix, names and tls, and no others")
    names = options["names"].split(",") if "names" in options else [f"{host}:{port}" for host, port in addresses]
    if len(names) != len(addresses):
        raise UnsafeConfiguration("a redlock URL has as many names as it has nodes")
    if not 3 <= len(set(addresses)) == len(addresses) <= MAX_NODES or len(set(names)) != len(names):
        raise UnsafeConfiguration(f"a redlock URL names 3 to {MAX_NODES} different nodes, best 5: {EXAMPLE}")
    if options.get("tls", "false") not in ("true", "false"):
        raise UnsafeConfiguration("in a redlock URL, tls is true or false")
    seats = sorted(
        (Seat(name, host, port) for name, (host, port) in zip(names, addresses, strict=True)),
        key=lambda seat: seat.name,
    )
    return Settings(
        tuple(seats),
        database,
        options.get("prefix", ""),
        unquote(user),
        unquote(password),
        options.get("tls") == "true",
    )


def _address(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.path or parts.port == 0:
        raise ValueError("an address has a host, and maybe a port")
    return parts.hostname, DEFAULT_PORT if parts.port is None else parts.port


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):  # `int` takes more than that: 1_0, -1, digits of other scripts
        raise ValueError("a database has a number")
    return int(text or 0)
