"""Which requests to an HTTP service write, and which lock protects what they write: by rules over the path."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from fencegate.core.errors import InvalidInput, MethodNotAllowed, NotFound, UnsafeConfiguration
from fencegate.core.names import FORMS, Guard, check_form

READS = ("GET", "HEAD", "OPTIONS")
WRITES = ("POST", "PUT", "PATCH", "DELETE")
MAX_ROUTES = 256

_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,31})(?::([a-z]+))?\}")
_PLAIN = re.compile(r"[^{}*%;\\\x00-\x20\x7f]+")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
# A tunnel, and an echo of the headers that the gateway adds.
_NEVER = frozenset({"CONNECT", "TRACE"})


class _Step(NamedTuple):
    """One segment of a rule: a text, or a hole with a name."""

    text: str
    name: str | None = None
    form: str = "str"

    @classmethod
    def parse(cls, text: str) -> "_Step | None":
        hole = _HOLE.fullmatch(text)
        if hole is not None:
            return cls("", hole[1], hole[2] or "str") if (hole[2] or "str") in FORMS else None
        return cls(text) if text not in (".", "..") and _PLAIN.fullmatch(text) is not None else None


class Match(NamedTuple):
    """The rule for a path, and the lock key that protects what the path names."""

    route: "Route"
    lock_key: str


@dataclass(frozen=True, slots=True)
class Route:
    """One rule: in `/accounts/{id:int}/*` a hole names one segment, and `*` at the end stands for whatever follows."""

    steps: tuple[_Step, ...]
    open_end: bool
    guard: Guard
    reads: frozenset[str]
    writes: frozenset[str]

    @classmethod
    def parse(cls, path: str, guard: str, resource: str, reads: Sequence[str], writes: Sequence[str]) -> Self:
        """UnsafeConfiguration says what can't be meant."""

        def wrong(detail: str) -> UnsafeConfiguration:
            return UnsafeConfiguration(f"the route {path[:200]!r}: {detail}")

        if not path.startswith("/"):
            raise wrong("a path begins with '/'")
        texts = path.removeprefix("/").removesuffix("/").split("/") if path != "/" else []
        open_end = texts[-1:] == ["*"]
        steps = [_Step.parse(text) for text in (texts[:-1] if open_end else texts)]
        whole = tuple(step for step in steps if step is not None)
        if len(whole) != len(steps):
            raise wrong("a segment is plain text, {name}, {name:int} or {name:uuid}; a '*' stands at the end, alone")
        names = [step.name for step in whole if step.name is not None]
        if len(set(names)) != len(names) or not {"resource", "key"}.isdisjoint(names):
            raise wrong("names of segments differ, and are not 'resource' or 'key'")
        for method in (*reads, *writes):
            if _METHOD.fullmatch(method) is None or method in _NEVER:
                raise wrong(f"{method[:32]!r} is not a method that can be passed on")
        if not set(reads).isdisjoint(writes):
            raise wrong("a method reads or writes, not both")
        return cls(whole, open_end, Guard(guard, resource, tuple(names)), frozenset(reads), frozenset(writes))

    def fill(self, segments: Sequence[str]) -> dict[str, str] | None:
        """The values of its holes, if this rule is for the path; else None. InvalidInput for one of another form."""
        if len(segments) < len(self.steps) or (len(segments) > len(self.steps) and not self.open_end):
            return None
        pairs = list(zip(self.steps, segments, strict=False))
        if any(step.name is None and step.text != segment for step, segment in pairs):
            return None
        holes = [(step.name, segment, step.form) for step, segment in pairs if step.name is not None]
        return {name: check_form(name, segment, form) for name, segment, form in holes}

    def covers(self, later: "Route") -> bool:
        """Whether it leaves no path to a later rule; a segment of another form is refused, and left to none."""
        more = len(later.steps) - len(self.steps)
        if more < 0 or (not self.open_end and (more > 0 or later.open_end)):
            return False
        pairs = zip(self.steps, later.steps, strict=False)
        return all(step.name is not None or step == theirs for step, theirs in pairs)

    def writing(self, method: str) -> bool:
        """Whether the method writes; MethodNotAllowed when this rule is not for it."""
        if method in self.writes:
            return True
        if method not in self.reads:
            allowed = ", ".join(sorted(self.reads | self.writes))
            raise MethodNotAllowed(f"{method} is not passed on for this path", allowed)
        return False


class Routes:
    """The rules of a service, in order: the first whose path fits decides, and a path that none fits is refused."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = tuple(routes)

    def match(self, segments: Sequence[str]) -> Match:
        for route in self._routes:
            values = route.fill(segments)
            if values is not None:
                return Match(route, route.guard.filled(values, "/".join(segments)))
        raise NotFound("no route of this resource is for this path")


def check_segment(segment: str) -> str:
    """A segment that every service reads as we do.

    A slash or a backslash inside it, a second layer of `%`, or what follows a `;` is a name to one server and
    something else to the next: the lock would be that of another path than the one that is written.
    """
    if segment in (".", ".."):
        raise InvalidInput("key", "must not have a '.' or '..' segment")
    if not {"/", "\\", ";"}.isdisjoint(segment):
        raise InvalidInput("key", "must not hold '/', '\\' or ';' in a segment, encoded or not")
    if _ENCODED.search(segment) is not None:
        raise InvalidInput("key", "is percent-encoded twice")
    return segment
