"""What a `postgresql://` URL says: how to connect, and in which schema the tables are."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from fencegate.core.errors import UnsafeConfiguration

CONNECT_WITHIN_S = 5

_DEFAULTS: dict[str, Any] = {
    "application_name": "fencegate",
    "connect_timeout": CONNECT_WITHIN_S,
    "client_encoding": "utf8",
    # Of several hosts, and after a failover behind one name: only a server that takes writes. A standby reads stale.
    "target_session_attrs": "read-write",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


@dataclass(frozen=True)
class Target:
    """Where the store is. `server` names it in what is said of it, without the password."""

    server: str
    parameters: dict[str, Any] = field(repr=False)
    schema: str | None


def parse_url(url: str) -> Target:
    """Everything that libpq takes, and `?schema=NAME`."""
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        ours = [value for name, value in query if name == "schema"]
        rest = urlencode([pair for pair in query if pair[0] != "schema"], quote_via=quote)
        parameters = conninfo_to_dict(urlunsplit(parts._replace(query=rest)))
        hosts = _hosts(parameters)
    except (ValueError, psycopg.Error):
        # Not the error itself: it may quote the password.
        raise UnsafeConfiguration(
            "the URL of the store can't be read; it looks like "
            "postgresql://USER:PASSWORD@HOST:5432/DATABASE?schema=NAME, with special characters percent-encoded"
        ) from None
    schema = ours[-1] if ours else None
    if schema is not None and not (schema and "\0" not in schema and len(schema.encode(errors="replace")) <= 63):
        raise UnsafeConfiguration("the schema of the store must be a name of at most 63 bytes: ?schema=NAME")
    if parameters.get("target_session_attrs", "primary") not in ("primary", "read-write"):
        raise UnsafeConfiguration(
            "target_session_attrs in the URL of the store lets it read from a standby, which may be old: leave it out"
        )
    database = parameters.get("dbname")
    server = f"PostgreSQL at {', '.join(hosts)}" + (f" ({database})" if database else "")
    return Target(server, {**_DEFAULTS, **parameters}, schema)


def _hosts(parameters: dict[str, Any]) -> list[str]:
    """Where it may be, in words. ValueError for a port that is none."""
    hosts = str(parameters.get("host") or parameters.get("hostaddr") or "a local socket").split(",")
    ports = [str(int(port)) if port else "" for port in str(parameters.get("port") or "").split(",")]
    if len(ports) == 1:
        ports *= len(hosts)
    return [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True)]
