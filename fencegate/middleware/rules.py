"""Rules of the middleware: which lock guards what a path names, said once for a service instead of in each handler."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.names import FORMS, Guard, check_form
from fencegate.middleware.presented import READS, Presented

_HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::([a-z]+))?\}")

_KINDS: Final = (*FORMS, "path")


class Guarded:
    """A path, and the guard of what it names.

    >>> Guarded("/accounts/{account_id:int}", "acct:{account_id}")

    `{name}` is one segment, `{name:int}` and `{name:uuid}` one of that form (another is refused: say so where your
    handler parses it), `{name:path}` the rest. The guard is a template over these names, or a function of them.
    `methods` are those that need a token: all that may write, unless said otherwise. A read is bound to the fence if
    it brings a token.
    """

    def __init__(
        self,
        path: str,
        guard: str | Callable[[Mapping[str, str]], str],
        *,
        methods: Iterable[str] | None = None,
    ) -> None:
        self._kinds: dict[str, str] = {}
        self._pattern = self._compiled(path)
        self._methods = None if methods is None else frozenset(method.upper() for method in methods)
        self._guard = guard if callable(guard) else self._filled(guard, path)

    def admit(self, presented: Presented) -> bool:
        """Bind the request to its fence if this rule covers it; tells whether it does."""
        found = self._pattern.fullmatch(presented.path)
        if found is None:
            return False
        names = found.groupdict()
        for name, text in names.items():
            if (kind := self._kinds[name]) in FORMS:
                check_form(name, text, kind)
        if self._needs_token(presented.method):
            presented.require(self._guard(names))
        else:
            presented.offer(self._guard(names))
        return True

    def _needs_token(self, method: str) -> bool:
        return method not in READS if self._methods is None else method in self._methods

    def _compiled(self, path: str) -> re.Pattern[str]:
        if not path.startswith("/"):
            raise UnsafeConfiguration(f"the path of a rule starts with '/': {path!r} does not")
        parts, end = [], 0
        for hole in _HOLE.finditer(path):
            name, kind = hole[1], hole[2] or "str"
            if kind not in _KINDS or name in self._kinds:
                problem = f"names {{{name}}} twice" if name in self._kinds else f"has an unknown kind {kind!r}"
                raise UnsafeConfiguration(f"the path {path!r} {problem}; the kinds are {', '.join(_KINDS)}")
            self._kinds[name] = kind
            text = ".+" if kind == "path" else "[^/]+"
            parts += [re.escape(path[end : hole.start()]), f"(?P<{name}>{text})"]
            end = hole.end()
        if not {"{", "}"}.isdisjoint(_HOLE.sub("", path)):
            raise UnsafeConfiguration(f"the path {path!r} has a brace that opens or closes no {{name}}")
        # Frameworks answer with and without the last slash, and those whose patterns end in `$` with a line feed behind
        # it; so must the fence.
        return re.compile("".join((*parts, re.escape(path[end:].rstrip("/")), "/?\n?")), re.DOTALL)

    def _filled(self, template: str, path: str) -> Callable[[Mapping[str, str]], str]:
        guard = Guard(template, path, tuple(self._kinds))
        return lambda names: guard.lock_key(tuple(names[name] for name in guard.columns))


def admit(rules: Iterable[Guarded], presented: Presented) -> None:
    """The first rule that covers the request decides; one that none covers passes, and its handler may bind it."""
    for rule in rules:
        if rule.admit(presented):
            return
