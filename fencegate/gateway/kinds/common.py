"""What every kind of resource can be told, and how a `[resources.NAME]` table becomes the settings of its kind."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast, get_args, get_origin
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from fencegate.core.durations import seconds
from fencegate.core.errors import InvalidInput, ResourceUnavailable, UnsafeConfiguration
from fencegate.core.names import Guard

Kind = Literal["rows", "objects", "upstream"]
Duration = str | int | float
"""As `seconds` reads it: "500ms", "30s", 2."""
Place = tuple[str | int, ...]
"""Where a setting is inside its table: ("routes", 0, "path")."""

MAX_TIMEOUT_S = 3600.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)")
_AT = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<place>[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_SAME = {"mariadb": "mysql", "azure": "az", "rediss": "redis"}
_PORTS = {"postgresql": ":5432", "mysql": ":3306", "redis": ":6379", "http": ":80", "https": ":443"}
_NAMES_NOTHING = frozenset({"region", "virtual_hosted", "replicas", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
"""Options that say how the data is reached, and not which it is."""
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


class BadSetting(UnsafeConfiguration):
    """A setting of a resource is wrong; `place` leads to it, inside the resource's table."""

    def __init__(self, resource: str, detail: str, *place: str | int) -> None:
        super().__init__(f"resource {resource!r}: {detail}")
        self.resource = resource
        self.place: Place = place


class Data(NamedTuple):
    """What a resource protects: of two that have some of it in common, neither would protect that from the other."""

    server: tuple[str, str]
    options: str
    """What else tells which data it is."""
    within: str
    """The part of it that is meant: all that begins so. A path ends in a slash, for `a` holds `a/b`, but not `ab`."""

    def holds(self, other: Self) -> bool:
        return self[:2] == other[:2] and other.within.startswith(self.within)


class ResourceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[resources.NAME]` table of the configuration. Each kind has its own class, chosen by the URL's scheme."""

    kind: ClassVar[Kind]

    name: str
    origin: str = ""
    """Where it is configured, such as "fencegate.toml:12"."""
    url: str
    guard: str = "{resource}:{key}"
    mode: Literal["enforce", "shadow"] = "enforce"
    issuer: bool = False
    """Whether all tokens come from a Fencegate lock service: then one far beyond now is refused."""
    max_bytes: int | None = None
    """The largest body of a write."""
    timeout: Duration = "30s"
    """How long a call waits for the resource."""

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise self.wrong("a name is 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise self.wrong("max_bytes must be at least 1", "max_bytes")
        _ = self.timeout_s
        try:
            urlsplit(self.url)
        except ValueError:
            raise self.wrong(
                "its url can't be read: brackets that don't match; write them as %5B, %5D", "url"
            ) from None
        self.check()
        try:
            _ = self.guard_rule
        except UnsafeConfiguration as error:
            raise self.wrong(error.detail.removeprefix(f"resource {self.name!r}: "), "guard") from None

    def check(self) -> None:
        """What else must hold for this kind; raises `wrong(…)`."""

    def build(self) -> Any:
        """The adapter for these settings, not yet opened."""
        raise NotImplementedError

    @staticmethod
    def of(name: str, table: Mapping[str, Any], origin: str = "") -> "ResourceSettings":
        """From a table of the configuration file; BadSetting says what is wrong with it, and where."""
        cls = _class_of(name, table)
        known = [field.name for field in msgspec.structs.fields(cls) if field.name not in ("name", "origin")]
        for given in table:
            if given not in known:
                raise BadSetting(name, unknown(given, known), given)
        try:
            return msgspec.convert({**table, "name": name, "origin": origin}, cls)
        except msgspec.ValidationError as error:
            raise _in_our_words(name, str(error), cls) from None

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0].lower()

    @property
    def columns(self) -> tuple[str, ...]:
        """What the guard may name beside {resource} and {key}."""
        return ()

    @property
    def data(self) -> Data:
        address, scheme = urlsplit(self.url), _SAME.get(self.scheme, self.scheme)
        host = address.netloc.rpartition("@")[2].lower().removesuffix(_PORTS.get(scheme, ":"))
        path = unquote(address.path).strip("/")
        options = {name: value for name, value in parse_qsl(address.query) if name not in _NAMES_NOTHING}
        if scheme == "redis":
            return Data((scheme, host), path or "0", options.get("prefix", ""))
        named = sorted(f"{name}={value.rstrip('/')}" for name, value in options.items())
        return Data((scheme, host), "&".join(named), f"{path}/" if path else "")

    @property
    def guard_rule(self) -> Guard:
        return Guard(self.guard, self.name, self.columns)

    @property
    def timeout_s(self) -> float:
        return self.duration_s("timeout", self.timeout)

    def duration_s(self, field: str, value: Duration, most_s: float = MAX_TIMEOUT_S) -> float:
        try:
            length_s = seconds(value, field)
        except InvalidInput as error:
            raise self.wrong(error.detail, field) from None
        if not 0 < length_s <= most_s:
            raise self.wrong(f"{field} must be more than 0 and at most {most_s:g} seconds", field)
        return length_s

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Around what makes and opens the resource: what goes wrong is told with its name, and the line it is on."""
        try:
            yield
        except UnsafeConfiguration as error:
            raise UnsafeConfiguration(self._located(error.detail)) from error
        except ResourceUnavailable as error:
            raise ResourceUnavailable(self._located(error.detail), outcome=error.outcome) from error

    def _located(self, detail: str) -> str:
        named = f"resource {self.name!r}"
        told = detail if detail.startswith(named) else f"{named}: {detail}"
        return f"{self.origin}: {told}" if self.origin else told

    def wrong(self, detail: str, *place: str | int) -> BadSetting:
        return BadSetting(self.name, detail, *place)

    @contextmanager
    def needs(self, extra: str) -> Iterator[None]:
        """Around the import of an adapter: a package that isn't there is named, and how to get it."""
        try:
            yield
        except ImportError as error:
            if (error.name or "").startswith("fencegate"):
                raise
            what = error.name or str(error)
            raise self.wrong(
                f"{self.scheme}: needs {what}, which is not installed: pip install 'fencegate[{extra}]'", "url"
            ) from None


# --- which kind a table is of ----------------------------------------------------------------------------------------

Choice = Callable[[str, Mapping[str, Any]], type[ResourceSettings]]
SUPPORTED: dict[str, str] = {}
"""An example of a URL for each scheme."""
_choices: dict[str, Choice] = {}


def register(examples: Mapping[str, str], choice: Choice) -> None:
    """Say which class the tables are of whose URL has one of these schemes."""
    for scheme, example in examples.items():
        SUPPORTED[scheme] = example
        _choices[scheme] = choice


def _class_of(name: str, table: Mapping[str, Any]) -> type[ResourceSettings]:
    if "url" not in table:
        raise BadSetting(name, f"has no url; say where it is, such as {', '.join(_examples())}")
    url = table["url"]
    found = _SCHEME.match(url) if isinstance(url, str) else None
    if found is None:
        raise BadSetting(name, f"its url is not one; write such as {', '.join(_examples())}", "url")
    scheme = found[0].lower()
    if scheme not in _choices:
        near = get_close_matches(scheme, _choices, 1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise BadSetting(
            name, f"the scheme {scheme[:32]!r} is not supported; {meant}there are {', '.join(_examples())}", "url"
        )
    return _choices[scheme](name, table)


def _examples() -> list[str]:
    return list(dict.fromkeys(SUPPORTED.values()))


# --- what is wrong, for people ---------------------------------------------------------------------------------------


def unknown(given: object, known: list[str]) -> str:
    """What to say of a setting that there is none of.

    >>> unknown("gaurd", ["guard", "url"])
    "'gaurd' is not a setting here; did you mean 'guard'? There are guard, url"
    """
    near = get_close_matches(str(given), known, 1)
    meant = f"did you mean {near[0]!r}? There" if near else "there"
    return f"{str(given)[:64]!r} is not a setting here; {meant} are {', '.join(known)}"


def _in_our_words(name: str, said: str, cls: type[ResourceSettings]) -> BadSetting:
    """msgspec tells the place at the end: "Expected `int`, got `str` - at `$.max_bytes`"."""
    found = _AT.fullmatch(said)
    assert found is not None  # it matches anything
    steps = [
        cast(str | int, key or (int(index) if index.isdigit() else index))
        for key, index in _STEP.findall(found["place"] or "")
    ]
    field = _UNKNOWN.fullmatch(found["what"])
    if field is not None:
        steps.append(field[1])
    where = ".".join(map(str, steps))
    what = f"{field[1]!r} is not a setting here" if field is not None else found["what"][:1].lower() + found["what"][1:]
    if words := _words_of(cls, steps):
        what = f"must be one of {', '.join(words)}"
    return BadSetting(name, f"{where}: {what}" if where else what, *(step for step in steps if step != "..."))


def _words_of(cls: type[ResourceSettings], steps: list[str | int]) -> list[str]:
    """Where a setting is one of a few words: which."""
    types = {field.name: field.type for field in msgspec.structs.fields(cls)}
    kind = types.get(str(steps[0])) if len(steps) == 1 else None
    return [repr(word) for word in get_args(kind)] if get_origin(kind) is Literal else []
