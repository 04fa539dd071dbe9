"""A lock key that is filled in from the arguments of a call: `inventory:{sku}`."""

import inspect
import string
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from fencegate.core.errors import InvalidInput
from fencegate.core.names import check_lock_key

LEASE = "lease"
"""The parameter by which a function asks for the lease."""


class Call:
    """A function under a lock: which lock a call of it needs, and how it is called with the lease.

    All that can be wrong with the template is found here, when the function is decorated, and not at its first call.
    """

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self._template = template
        self._function = function
        self._full = inspect.signature(function)
        wants_lease = LEASE in self._full.parameters
        kept = [each for name, each in self._full.parameters.items() if name != LEASE]
        self.signature = self._full.replace(parameters=kept) if wants_lease else self._full
        """What callers may pass: everything but the lease."""
        self._wants_lease = wants_lease
        fields = _fields(template)
        for name in fields:
            if name not in self.signature.parameters:
                raise InvalidInput("template", _unknown(name, template, function, self.signature))
        if not fields:
            check_lock_key(template.format())

    def lock_key(self, bound: inspect.BoundArguments) -> str:
        """The key that this call locks; InvalidInput when an argument can't be part of one."""
        return check_lock_key(_STRICT.vformat(self._template, (), bound.arguments))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """The arguments by name, with defaults; TypeError when they don't fit, before anything is locked."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def run(self, bound: inspect.BoundArguments, lease: object) -> Any:
        if not self._wants_lease:
            return self._function(*bound.args, **bound.kwargs)
        given = {**bound.arguments, LEASE: lease}
        whole = inspect.BoundArguments(self._full, OrderedDict((name, given[name]) for name in self._full.parameters))
        return self._function(*whole.args, **whole.kwargs)


class _Strict(string.Formatter):
    """Refuses values that would make a key that nobody meant."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if value is None or not any({"__str__", "__repr__"} & vars(kind).keys() for kind in type(value).__mro__[:-1]):
            # An address in memory would be another key in each process, and exclude nobody.
            raise InvalidInput("lock_key", f"can't be made of {value!r}; give a text or a number")
        text = super().format_field(value, format_spec)
        if not text:
            raise InvalidInput("lock_key", "can't be made of an empty text")
        return text


_STRICT = _Strict()


def _fields(template: str) -> list[str]:
    """The parameters that the template names: `sku` in `{sku}`, `order` in `{order.id}` and in `{order[id]}`."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InvalidInput("template", f"{template!r} can't be read: {error}") from None
    names = []
    for _, field, spec, _ in parsed:
        if field is None:
            continue
        name = field.split(".")[0].split("[")[0]
        if not name.isidentifier():
            raise InvalidInput("template", f"{{{field}}} in {template!r} must be the name of a parameter")
        names.append(name)
        names += _fields(spec or "")
    return names


def _unknown(name: str, template: str, function: Callable[..., Any], signature: inspect.Signature) -> str:
    known = ", ".join(signature.parameters) or "none"
    called = getattr(function, "__qualname__", repr(function))
    return f"{template!r} names {name!r}, which is no parameter of {called} (there are: {known})"
