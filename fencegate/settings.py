"""What `fencegate serve` is told: by flags, then `FENCEGATE_…` variables, then a TOML file, then defaults."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from fencegate.core.errors import UnsafeConfiguration
from fencegate.env import setting
from fencegate.gateway.resources import ResourceSettings
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.routes import Routes

Role = Literal["all", "lockservice", "gateway"]
DEFAULT_LISTEN = "127.0.0.1:7420"
DEFAULT_DATA = Path(".fencegate")
_KNOWN = frozenset({"listen", "store", "data", "role", "locks", "resources"})


@dataclass(frozen=True, slots=True)
class Settings:
    host: str
    port: int
    role: Role
    store: Routes
    """Where locks are kept."""
    resources: Mapping[str, ResourceSettings] = field(default_factory=dict)
    locks: LockSettings = field(default_factory=LockSettings)
    folder: Path | None = None
    """Where the resources are that there are by default; None when others were named."""


def read(
    *,
    listen: str | None = None,
    role: str | None = None,
    store: Sequence[str] | None = None,
    data: Path | None = None,
    config: Path | None = None,
) -> Settings:
    """Put the settings together; UnsafeConfiguration says what is wrong and where."""
    config = config or _path(setting("config"))
    table = _file(config) if config is not None else {}
    host, port = _address(listen or setting("listen") or _text(table, "listen") or DEFAULT_LISTEN)
    chosen = _role(role or setting("role") or _text(table, "role") or "all")
    folder = (data or _path(setting("data")) or _path(_text(table, "data")) or DEFAULT_DATA).absolute()
    routes = _routes(store, table.get("store")) or Routes.of([f"sqlite:///{folder / 'locks.db'}"])
    locks = LockSettings.of(table.get("locks"), setting)
    resources = _resources(table.get("resources"), folder)
    return Settings(host, port, chosen, routes, resources, locks, folder if "resources" not in table else None)


def _routes(flags: Sequence[str] | None, in_file: Any) -> Routes | None:
    """From the flags, else the variable, else the file; routes of two of these are never mixed."""
    if flags:
        return Routes.of(flags)
    if variable := setting("store"):
        return Routes.in_text(variable)
    if isinstance(in_file, str) and in_file:
        return Routes.in_text(in_file)
    if isinstance(in_file, Mapping):
        return Routes.in_table(in_file)
    if in_file:
        raise UnsafeConfiguration("store: must be a URL, or a table of prefixes and URLs")
    return None


def _resources(tables: Any, folder: Path) -> dict[str, ResourceSettings]:
    if tables is None:
        tables = {
            "rows": {"url": f"sqlite:///{folder / 'rows.db'}"},
            "objects": {"url": f"file://{folder / 'objects'}"},
        }
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise UnsafeConfiguration("resources: each is a table of its own: [resources.accounts]")
    return {name: ResourceSettings.of(name, table) for name, table in tables.items()}


def _file(path: Path) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnsafeConfiguration(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnsafeConfiguration(f"{path}: {error}") from None
    unknown = sorted(set(table) - _KNOWN)
    if unknown:
        raise UnsafeConfiguration(f"{path}: {unknown[0]!r} is not a setting; there are {', '.join(sorted(_KNOWN))}")
    return table


def _text(table: Mapping[str, Any], name: str) -> str | None:
    value = table.get(name)
    if value is not None and not isinstance(value, str):
        raise UnsafeConfiguration(f"{name}: must be a string")
    return value


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _role(text: str) -> Role:
    if text not in get_args(Role):
        raise UnsafeConfiguration(f"role: {text!r} is not one of {', '.join(get_args(Role))}")
    return cast(Role, text)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UnsafeConfiguration(f"listen: {text!r} is not HOST:PORT, such as {DEFAULT_LISTEN}")
    return host.strip("[]") or "127.0.0.1", int(port)
