"""The URL of an etcd store: `etcd://USER:PASSWORD@A:2379,B:2379,C:2379/ROOT?ca=FILE&cert=FILE&key=FILE&compact=off`."""

import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from fencegate.core.errors import UnsafeConfiguration

PORT = 2379
_PARAMETERS = ("tls", "ca", "cert", "key", "compact")
_ENDPOINT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a URL says."""

    endpoints: tuple[tuple[str, int], ...]
    root: str = ""
    """What every key of ours begins with: several lock services may share one etcd."""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    tls_for_pages: ssl.SSLContext | None = None
    """The same for plain HTTP."""
    compact: bool = True
    """Whether the history of etcd, which is that of all its users, is compacted from here."""


def parse(url: str) -> Settings:
    """UnsafeConfiguration when it makes no sense; the password is never in what it says."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    place, _, root = rest.partition("/")
    login, at, hosts = place.rpartition("@")
    user, _, password = login.partition(":")
    if at and not user:
        raise UnsafeConfiguration("the URL of an etcd store has a password, but no user")
    options = _options(query)
    tls = scheme == "etcds" or _switch("tls", options.get("tls", "off"))
    if not tls and any(name in options for name in ("ca", "cert", "key")):
        raise UnsafeConfiguration("an etcd URL with ca, cert or key needs TLS: write etcds://…")
    root = unquote(root).strip("/")
    return Settings(
        endpoints=_endpoints(hosts),
        root=f"/{root}" if root else "",
        user=unquote(user),
        password=unquote(password),
        tls=_context(options, "h2") if tls else None,
        tls_for_pages=_context(options, "http/1.1") if tls else None,
        compact=_switch("compact", options.get("compact", "on")),
    )


def _endpoints(hosts: str) -> tuple[tuple[str, int], ...]:
    found = []
    for part in hosts.split(","):
        match = _ENDPOINT.fullmatch(part)
        port = int(match["port"] or PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise UnsafeConfiguration(
                "the URL of an etcd store names no endpoint that can be read; write etcd://A:2379,B:2379,C:2379"
            )
        found.append((match["host"].strip("[]"), port))
    if len(set(found)) != len(found):
        raise UnsafeConfiguration("the URL of an etcd store names an endpoint twice")
    return tuple(found)


def _options(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    for name, _ in pairs:
        if name not in _PARAMETERS:
            known = ", ".join(_PARAMETERS)
            if "@" in query:  # it is the rest of a password
                raise UnsafeConfiguration(
                    f"an etcd URL has no such parameter; there are {known}; a password's ? is %3F"
                )
            raise UnsafeConfiguration(f"an etcd URL has no parameter {name[:32]!r}; there are {known}")
    return dict(pairs)


def _switch(name: str, text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise UnsafeConfiguration(f"the parameter {name!r} of an etcd URL is on or off")
    return _SWITCH[text.lower()]


def _context(options: dict[str, str], protocol: str) -> ssl.SSLContext:
    if "key" in options and "cert" not in options:
        raise UnsafeConfiguration("in an etcd URL, key goes with cert")
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        context.set_alpn_protocols([protocol])
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except (OSError, ValueError) as error:
        raise UnsafeConfiguration(f"the certificates of the etcd store can't be read: {error}") from None
    return context
