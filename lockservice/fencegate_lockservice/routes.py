"""Which store a lock key belongs to: by its longest prefix, as configured.

`--store "orders:=redis://a" --store "*=postgresql://b"`; a URL by itself is the store of every key.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate.core.names import check_text

EVERYTHING = "*"
MAX_ROUTES = 100
MAX_PREFIX_BYTES = 1024

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ROUTE = re.compile(r"(?P<prefix>.*?)=(?P<url>[A-Za-z][A-Za-z0-9+.-]*://.*)", re.DOTALL)
# A path may have blanks inside, so a blank parts two routes only where another one begins.
_BETWEEN = re.compile(r"\s*\n\s*|\s+(?=\S*?=[A-Za-z][A-Za-z0-9+.-]*://)")
_SECRET = re.compile(r"//.*@", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Routes:
    """Prefixes of lock keys, and the URL of the store that each of them belongs to; '' is the prefix of all.

    >>> Routes.of(["orders:=redis://a", "*=redis://b"]).url_of("orders:7")
    'redis://a'
    """

    urls: Mapping[str, str]
    """By prefix, the longest first."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Routes":
        """From `PREFIX=URL` each, or one URL; UnsafeConfiguration says what is wrong with them."""
        return cls._made([_pair(text.strip()) for text in texts])

    @classmethod
    def in_text(cls, text: str) -> "Routes":
        """From one text, in which routes are parted by white space or by new lines."""
        return cls.of([part for part in _BETWEEN.split(text.strip()) if part])

    @classmethod
    def in_table(cls, table: Mapping[str, Any]) -> "Routes":
        """From a table of the configuration: `{ "orders:" = "redis://a", "*" = "postgresql://b" }`."""
        for prefix, url in table.items():
            if not isinstance(url, str) or _URL.match(url) is None:
                raise UnsafeConfiguration(f"store: what {prefix!r} leads to must be the URL of a store")
        return cls._made(list(table.items()))

    @classmethod
    def _made(cls, pairs: Sequence[tuple[str, str]]) -> "Routes":
        if not pairs:
            raise UnsafeConfiguration("store: must name a store")
        if len(pairs) > MAX_ROUTES:
            raise UnsafeConfiguration(f"store: there may be at most {MAX_ROUTES} routes")
        urls: dict[str, str] = {}
        for given, url in pairs:
            prefix = _checked(given)
            if prefix in urls:
                raise UnsafeConfiguration(f"store: {shown(prefix)} is given twice; each prefix belongs to one store")
            urls[prefix] = url
        return cls(dict(sorted(urls.items(), key=lambda route: (-len(route[0]), route[0]))))

    @property
    def stores(self) -> tuple[str, ...]:
        """The URLs, each once, that of everything last."""
        return tuple(dict.fromkeys(self.urls.values()))

    @property
    def only(self) -> str | None:
        """The URL of the one store that everything belongs to; None when there is more to say."""
        return self.urls[""] if tuple(self.urls) == ("",) else None

    def prefixes_of(self, url: str) -> tuple[str, ...]:
        return tuple(prefix for prefix, each in self.urls.items() if each == url)

    def url_of(self, lock_key: str) -> str | None:
        """None when no prefix fits."""
        for prefix, url in self.urls.items():
            if lock_key.startswith(prefix):
                return url
        return None

    def within(self, prefix: str) -> tuple[str, ...]:
        """The stores to which keys that begin like this may belong."""
        above = self.url_of(prefix)
        below = [url for other, url in self.urls.items() if other.startswith(prefix)]
        return tuple(dict.fromkeys([*([above] if above is not None else []), *below]))

    def as_text(self) -> str:
        """As one text, that `in_text` reads again."""
        return self.only or "\n".join(f"{prefix or EVERYTHING}={url}" for prefix, url in self.urls.items())

    def without_secrets(self) -> str:
        if self.only is not None:
            return without_secrets(self.only)
        return " ".join(f"{prefix or EVERYTHING}={without_secrets(url)}" for prefix, url in self.urls.items())


def shown(prefix: str) -> str:
    """A prefix as people write it."""
    return repr(prefix or EVERYTHING)


def without_secrets(url: str) -> str:
    """For people to see: neither what may be a password, nor options, among which there may be one as well."""
    place, question, _ = _SECRET.sub("//…@", url).partition("?")
    return f"{place}?…" if question else place


def is_routes(text: str) -> bool:
    """Whether it is anything but the one URL of a store, or of a server."""
    return _URL.match(text.strip()) is None or _BETWEEN.search(text.strip()) is not None


def _pair(text: str) -> tuple[str, str]:
    if _URL.match(text) is not None:
        return EVERYTHING, text
    found = _ROUTE.fullmatch(text)
    if found is None:
        # Not the whole of it: there may be a password inside.
        begins = re.split(r"[=/@]|:(?!=)", text)[0][:32]
        raise UnsafeConfiguration(f"store: {begins!r}… is neither a URL nor PREFIX=URL, such as orders:=redis://a")
    return found["prefix"], found["url"]


def _checked(prefix: str) -> str:
    if prefix == EVERYTHING:
        return ""
    if prefix.endswith(EVERYTHING):
        raise UnsafeConfiguration(
            f"store: {prefix!r} ends in '*'; a prefix is taken as it is, so write {prefix.rstrip('*')!r}"
        )
    try:
        return check_text("store", prefix, MAX_PREFIX_BYTES)
    except InvalidInput as error:
        raise UnsafeConfiguration(f"{error.detail} (the prefix {prefix[:32]!r})") from None
