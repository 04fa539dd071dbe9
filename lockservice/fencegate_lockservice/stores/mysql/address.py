"""Where a `mysql://` URL leads, read with care: what is said of a bad one never shows the password."""

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from sqlalchemy import URL

from fencegate.core.errors import UnsafeConfiguration

FORM = "mysql://USER:PASSWORD@HOST:3306/DATABASE?tls=verify&ca=FILE (or ?socket=FILE)"
_OPTIONS = ("tls", "ca", "socket")


@dataclass(frozen=True, slots=True)
class Address:
    """A database on a server, and who we are there."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    socket: str | None = None
    tls: ssl.SSLContext | None = None

    @property
    def server(self) -> str:
        """The server, in words for people."""
        return f"the MySQL server at {self.socket or f'{self.host}:{self.port}'}"

    def for_sqlalchemy(self) -> tuple[URL, dict[str, object]]:
        """The same for migrations: a URL, and the driver's arguments."""
        url = URL.create("mysql+pymysql", self.user, self.password or None, self.host, self.port, self.database)
        arguments: dict[str, object] = {"charset": "utf8mb4", "connect_timeout": 10}
        if self.socket is not None:
            arguments["unix_socket"] = self.socket
        arguments |= {"ssl": self.tls} if self.tls is not None else {"ssl_disabled": True}
        return url, arguments


def read_address(url: str) -> Address:
    """UnsafeConfiguration when it can't be understood, or asks for what is not known."""
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise UnsafeConfiguration(f"the URL of the store can't be read: write it as {FORM}") from None
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database:
        raise UnsafeConfiguration(f"the URL of the store names no database: write it as {FORM}")
    if "," in parts.netloc.rpartition("@")[2]:
        raise UnsafeConfiguration(f"the URL of the store names one host: write it as {FORM}")
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown or parts.fragment:
        raise UnsafeConfiguration(f"the URL of the store has an option that is not known here: write it as {FORM}")
    password = unquote(parts.password or "")
    if not password.isascii():
        raise UnsafeConfiguration("the password of a MySQL user must be ASCII: the driver can send no other")
    return Address(
        host=parts.hostname or "127.0.0.1",
        port=port,
        user=unquote(parts.username or "root"),
        password=password,
        database=database,
        socket=options.get("socket"),
        tls=_tls(options.get("tls", "off"), options.get("ca")),
    )


def _tls(mode: str, ca: str | None) -> ssl.SSLContext | None:
    if mode == "off" and ca is None:
        return None
    if mode != "verify":
        raise UnsafeConfiguration("tls is off, or verify (which checks the server's certificate and its name)")
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise UnsafeConfiguration(f"the file of certificates in `ca` can't be used: {error.strerror}") from None
