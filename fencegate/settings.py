"""What `fencegate serve` is told: by flags, then `FENCEGATE_…` variables, then a TOML file, then defaults."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from fencegate.config_file import ConfigFile
from fencegate.core.errors import UnsafeConfiguration
from fencegate.env import setting
from fencegate.gateway.kinds.common import Data, unknown
from fencegate.gateway.resources import BadSetting, ResourceSettings, UpstreamSettings
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.routes import Routes
from fencegate_lockservice.stores import check_supported

Role = Literal["all", "lockservice", "gateway"]
DEFAULT_LISTEN = "127.0.0.1:7420"
DEFAULT_DATA = Path(".fencegate")
MAX_RESOURCES = 1000
_SQLITE = "sqlite:///"
_KNOWN = ["listen", "store", "data", "role", "locks", "resources"]


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
    """Where the embedded resources, and the fences of services, are; None when there are none."""


def read(
    *,
    listen: str | None = None,
    role: str | None = None,
    store: Sequence[str] | None = None,
    data: Path | None = None,
    config: Path | None = None,
) -> Settings:
    """Put the settings together; UnsafeConfiguration says what is wrong and where."""
    file = ConfigFile(config or _path(setting("config")))
    for name in file.table:
        if name not in _KNOWN:
            raise file.wrong(unknown(name, _KNOWN), name)
    host, port = _address(*_chosen("listen", listen, file), file)
    chosen = _role(*_chosen("role", role, file), file)
    folder = (data or _path(setting("data")) or _path(_text(file, "data")) or DEFAULT_DATA).absolute()
    routes = _routes(store, file) or Routes.of([f"sqlite:///{_inside(folder, 'locks.db')}"])
    locks = _locks(file)
    resources = _resources(file, folder)
    for name, resource in resources.items():
        if shared := _files(_urls(resource)) & _files(routes.urls.values()):
            what = f"{shared.pop()} is the file of a lock store, which nobody else can open; name another"
            raise file.wrong(f"resource {name!r}: {what}", "resources", name)
    embedded = any(_is_in(folder, each) for each in resources.values())
    return Settings(host, port, chosen, routes, resources, locks, folder if embedded else None)


def _inside(folder: Path, name: str) -> Path:
    """The path of something that is embedded, for a URL, where stores and resources would not read these alike."""
    if not {"%", "?", "#"}.isdisjoint(str(folder)):
        raise UnsafeConfiguration(f"data: {folder} has a '%', '?' or '#' in it, which URLs can't hold; give another")
    return folder / name


def _chosen(name: str, flag: str | None, file: ConfigFile) -> tuple[str | None, bool]:
    """The text of a setting, and whether it comes from the file."""
    given = flag or setting(name)
    return (given, False) if given else (_text(file, name), True)


def _text(file: ConfigFile, name: str) -> str | None:
    value = file.table.get(name)
    if value is not None and not isinstance(value, str):
        raise file.wrong(f"{name}: must be a string", name)
    if value == "":
        raise file.wrong(f"{name}: is empty; leave it out for the default", name)
    return value


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _role(text: str | None, in_file: bool, file: ConfigFile) -> Role:
    text = text or "all"
    if text not in get_args(Role):
        detail = f"role: {text!r} is not one of {', '.join(get_args(Role))}"
        raise file.wrong(detail, "role") if in_file else UnsafeConfiguration(detail)
    return cast(Role, text)


def _address(text: str | None, in_file: bool, file: ConfigFile) -> tuple[str, int]:
    text = text or DEFAULT_LISTEN
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        detail = f"listen: {text!r} is not HOST:PORT, such as {DEFAULT_LISTEN}"
        raise file.wrong(detail, "listen") if in_file else UnsafeConfiguration(detail)
    return host.strip("[]") or "127.0.0.1", int(port)


# --- locks -----------------------------------------------------------------------------------------------------------


def _routes(flags: Sequence[str] | None, file: ConfigFile) -> Routes | None:
    """From the flags, else the variable, else the file; routes of two of these are never mixed."""
    if flags:
        return Routes.of(flags)
    if variable := setting("store"):
        return Routes.in_text(variable)
    if "store" not in file.table:
        return None
    for prefix in _table(file.table["store"]):
        file.fill_in("store", prefix)
    file.fill_in("store")
    in_file = file.table["store"]
    with file.blamed("store"):
        if isinstance(in_file, str):
            return _supported(Routes.in_text(in_file))
        if isinstance(in_file, Mapping):
            for prefix in in_file:
                with file.blamed("store", prefix):
                    _supported(Routes.in_table({prefix: in_file[prefix]}))
            return Routes.in_table(in_file)
        raise UnsafeConfiguration("store: must be a URL, or a table of prefixes and URLs")


def _supported(routes: Routes) -> Routes:
    """Judged while the line is known; whoever opens them later knows only a URL."""
    for url in routes.stores:
        check_supported(url)
    return routes


def _locks(file: ConfigFile) -> LockSettings:
    try:
        return LockSettings.of(file.table.get("locks"), setting)
    except UnsafeConfiguration as error:
        name = error.detail.partition(":")[0].removeprefix("locks.")
        if name in _table(file.table.get("locks")) and setting(name) is None:
            raise file.wrong(error.detail, "locks", name) from None
        if name == "locks":
            raise file.wrong(error.detail, "locks") from None
        raise


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- resources -------------------------------------------------------------------------------------------------------


def _resources(file: ConfigFile, folder: Path) -> dict[str, ResourceSettings]:
    if "resources" not in file.table:
        file.table["resources"] = {
            "rows": {"url": f"sqlite:///{_inside(folder, 'rows.db')}"},
            "objects": {"url": f"file://{_inside(folder, 'objects')}"},
        }
    tables = file.table["resources"]
    if not isinstance(tables, Mapping):
        raise file.wrong("resources: each is a table of its own: [resources.accounts]", "resources")
    if len(tables) > MAX_RESOURCES:
        raise file.wrong(f"resources: there may be at most {MAX_RESOURCES}", "resources")
    found: dict[str, ResourceSettings] = {}
    named: dict[str, Data] = {}
    for name in tables:
        found[name] = _resource(file, name, folder)
        data = found[name].data
        for other, others in named.items():
            if shared := _shared(data, others, repr(other)):
                two = "what is in both would have two locks, and neither would protect it"
                raise file.wrong(f"resource {name!r}: {shared}: {two}", "resources", name)
        named[name] = data
    return found


def _shared(data: Data, others: Data, other: str) -> str | None:
    """How two resources have data in common."""
    if data == others:
        return f"is the same data as {other}"
    if others.holds(data):
        return f"lies inside {other}"
    return f"{other} lies inside it" if data.holds(others) else None


def _resource(file: ConfigFile, name: str, folder: Path) -> ResourceSettings:
    place = ("resources", name)
    table = file.table["resources"][name]
    if not isinstance(table, dict):
        raise file.wrong(f"resources: {name!r} must be a table of its own: [resources.accounts]", *place)
    for url in ("url", "fence"):
        if url in table:
            file.fill_in(*place, url)
    if "fence" not in table and str(table.get("url")).lower().startswith(("http:", "https:")):
        table["fence"] = f"sqlite:///{_inside(folder, f'{name}.fence.db')}"
    try:
        return ResourceSettings.of(name, table, file.where(*place))
    except BadSetting as error:
        raise file.wrong(error.detail, *place, *error.place) from None


def _is_in(folder: Path, resource: ResourceSettings) -> bool:
    return any(f"{folder}/" in url for url in _urls(resource))


def _urls(resource: ResourceSettings) -> list[str]:
    fence = resource.fence if isinstance(resource, UpstreamSettings) else None
    return [resource.url] if fence is None else [resource.url, fence]


def _files(urls: Iterable[str]) -> set[Path]:
    """The databases of SQLite among these, by their real names."""
    return {Path(url.removeprefix(_SQLITE)).resolve() for url in urls if url.startswith(_SQLITE)}
