"""The configuration file: read, with variables filled in, and errors that name the line."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fencegate.core.errors import UnsafeConfiguration
from fencegate.env import variable
from fencegate.toml_lines import Place, lines_of

MAX_BYTES = 1024 * 1024

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_LINE = re.compile(r"at line (\d+)")


class Located(UnsafeConfiguration):
    """An error that says on which line it is."""


class ConfigFile:
    """A TOML file, or no file at all."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lines: Mapping[Place, int] = {}
        self.table: dict[str, Any] = {}
        if path is not None:
            text = _text_of(path)
            self.table = _parsed(path, text)
            self._lines = lines_of(text)

    def where(self, *place: str | int) -> str:
        """`fencegate.toml:12`: the line of this setting, or of the nearest around it; '' without a file."""
        if self._path is None:
            return ""
        for end in range(len(place), 0, -1):
            if place[:end] in self._lines:
                return f"{self._path}:{self._lines[place[:end]]}"
        return str(self._path)

    def wrong(self, detail: str, *place: str | int) -> UnsafeConfiguration:
        where = self.where(*place)
        return Located(f"{where}: {detail}" if where else detail)

    @contextmanager
    def blamed(self, *place: str | int) -> Iterator[None]:
        """Around what judges the setting at this place: its errors get the line."""
        try:
            yield
        except Located:
            raise
        except UnsafeConfiguration as error:
            raise self.wrong(error.detail, *place) from None

    def fill_in(self, *place: str | int) -> None:
        """Replace `${NAME}` in the URL at this place by the variable NAME, or by what the file in NAME_FILE holds."""
        within: Any = self.table
        for step in place[:-1]:
            within = within[step]
        url = within[place[-1]]
        if isinstance(url, str) and "${" in url:
            with self.blamed(*place):
                within[place[-1]] = filled_in(url, ".".join(map(str, place)))


def filled_in(url: str, setting: str, look_up: Callable[[str], str | None] = variable) -> str:
    """The URL with its references resolved. A user's name and password, and options, are escaped as a URL wants it.

    >>> filled_in("redis://:${PASSWORD}@cache/0", "url", {"PASSWORD": "a@b/c"}.get)
    'redis://:a%40b%2Fc@cache/0'
    """
    if "${" in _REFERENCE.sub("", url):  # else the name of a secret would be taken for the secret
        raise UnsafeConfiguration(f"{setting}: a '${{' has no '}}' of its own; write such as ${{DB_PASSWORD}}")
    authority = _AUTHORITY.match(url)
    user_end = url.rfind("@", *authority.span(1)) if authority is not None else -1
    query_start = url.find("?")

    def value(reference: re.Match[str]) -> str:
        name = reference[1]
        if _VARIABLE.fullmatch(name) is None:
            raise UnsafeConfiguration(
                f"{setting}: '${{{name[:64]}}}' names no variable; write such as ${{DB_PASSWORD}}"
            )
        found = look_up(name)
        if found is None:
            raise UnsafeConfiguration(f"{setting}: ${{{name}}} is not set; set {name}, or {name}_FILE to a file's path")
        escape = reference.start() < user_end or 0 <= query_start < reference.start()
        return quote(found, safe="") if escape else found

    return _REFERENCE.sub(value, url)


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnsafeConfiguration(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise UnsafeConfiguration(f"{path}: is over {MAX_BYTES} bytes, which is no configuration")
    try:
        return data.decode("utf-8-sig")  # some editors put a mark before the text
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnsafeConfiguration(f"{path}:{line}: is not UTF-8, which TOML must be") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        told = _LINE.search(str(error))
        line = told[1] if told is not None else text.rstrip("\n").count("\n") + 1
        raise UnsafeConfiguration(f"{path}:{line}: {error}") from None
    except RecursionError:
        raise UnsafeConfiguration(f"{path}: is nested too deeply") from None
