"""On which line of a TOML file a setting is, for errors that name it: the parser of the standard library doesn't say.

It reads text that `tomllib` has accepted, so it only has to tell keys and values apart, never right from wrong.
"""

import re
import tomllib

Place = tuple[str | int, ...]
"""The way to a setting: ("resources", "api", "routes", 0, "path")."""

_BLANK = re.compile(r"(?:[ \t\n\r,]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG_BASIC = re.compile(r'"""(?:\\.|"{0,2}[^"\\])*"{3,5}', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''(?:'{0,2}[^'])*'{3,5}", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def lines_of(text: str) -> dict[Place, int]:
    """The line, from 1, of every table, key and element in this text.

    >>> lines_of('[a]\\nb = [\\n  1,\\n  2]\\n')[("a", "b", 1)]
    4
    """
    return _Reader(text.replace("\r\n", "\n")).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0
        self._found: dict[Place, int] = {}
        self._lengths: dict[Place, int] = {}
        """How many tables each array of tables has so far."""

    def read(self) -> dict[Place, int]:
        table: Place = ()
        while self._more():
            if self._take("[["):
                table = self._element_of(self._inside(self._key()))
                self._at += len("]]")
            elif self._take("["):
                table = self._inside(self._key())
                self._note(table)
                self._at += len("]")
            else:
                self._pair(table)
        return self._found

    def _pair(self, table: Place) -> None:
        place = table
        for part in self._key():
            place = (*place, part)
            self._note(place)
        self._at += len("=")
        self._skip(_SPACE)
        self._value(place)

    def _value(self, place: Place) -> None:
        if self._take("["):
            index = 0
            while self._more() and not self._take("]"):
                self._note((*place, index))
                self._value((*place, index))
                index += 1
        elif self._take("{"):
            while self._more() and not self._take("}"):
                self._pair(place)
        else:
            for pattern in (_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL, _SCALAR):
                if self._skip(pattern):
                    return
            raise AssertionError(f"tomllib takes it, and we can't read it: {self._text[self._at : self._at + 20]!r}")

    def _key(self) -> list[str]:
        """The parts of a dotted key; what comes after it is next."""
        parts = []
        while True:
            self._skip(_SPACE)
            start = self._at
            if self._skip(_BARE_KEY):
                parts.append(self._text[start : self._at])
            elif self._skip(_LITERAL) or self._skip(_BASIC):
                parts.append(str(tomllib.loads(f"k = {self._text[start : self._at]}")["k"]))
            self._skip(_SPACE)
            if not self._take("."):
                return parts

    def _inside(self, key: list[str]) -> Place:
        """Where a header leads: past an array of tables, to its last one."""
        place: Place = ()
        for part in key[:-1]:
            place = (*place, part)
            self._note(place)
            if place in self._lengths:
                place = (*place, self._lengths[place] - 1)
        return (*place, *key[-1:])

    def _element_of(self, array: Place) -> Place:
        index = self._lengths.get(array, 0)
        self._lengths[array] = index + 1
        self._note(array)
        element = (*array, index)
        self._note(element)
        return element

    def _note(self, place: Place) -> None:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        self._found.setdefault(place, self._line)

    def _more(self) -> bool:
        self._skip(_BLANK)
        return self._at < len(self._text)

    def _take(self, sign: str) -> bool:
        taken = self._text.startswith(sign, self._at)
        self._at += len(sign) if taken else 0
        return taken

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self._text, self._at)
        if found is None:
            return False
        self._at = found.end()
        return True
