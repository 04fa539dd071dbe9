"""How a resource is protected, as its database remembers it, and what is said when that no longer fits."""

from typing import NamedTuple

from fencegate.core.errors import UnsafeConfiguration


class Record(NamedTuple):
    """Guard, form and mode are recorded in the resource: under others its marks would mean nothing."""

    name: str
    guard: str
    form: str
    mode: str

    def changed(self, guard: str, form: str, mode: str) -> UnsafeConfiguration:
        pairs = zip(("guard", "form", "mode"), (guard, form, mode), self[1:], strict=True)
        what = "; ".join(f"{field} was {old!r} and is {new!r}" for field, old, new in pairs if old != new)
        return UnsafeConfiguration(f"resource {self.name!r}: {what}. {self._cure}")

    def lost(self) -> UnsafeConfiguration:
        return UnsafeConfiguration(
            f"resource {self.name!r} has lost its record, and its marks: Redis was flushed, restored or failed over. "
            f"{self._cure}"
        )

    @property
    def _cure(self) -> str:
        return (
            "Make sure that no lease from before is alive, and run "
            f"`fencegate fence floor {self.name} VALUE`, with VALUE above every token issued so far"
        )
