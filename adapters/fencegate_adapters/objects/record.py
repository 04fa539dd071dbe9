"""What a folder or bucket remembers of its resource, so that it is never opened under another guard or mode."""

import json
from dataclasses import dataclass
from typing import Literal, Self

from fencegate.core.errors import UnsafeConfiguration

Mode = Literal["enforce", "shadow"]


@dataclass(frozen=True, slots=True)
class Record:
    """The resource's name, its guard, the form of its objects, its mode, and the floor below which no fence accepts."""

    name: str
    guard: str
    mode: Mode
    form: str = "framed"
    floor: int = 0

    def encode(self) -> bytes:
        fields = {
            "name": self.name,
            "guard": self.guard,
            "form": self.form,
            "mode": self.mode,
            "floor": str(self.floor),
        }
        return json.dumps(fields, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        try:
            fields = json.loads(data)
            return cls(fields["name"], fields["guard"], fields["mode"], fields["form"], int(fields["floor"]))
        except (ValueError, KeyError, TypeError):
            raise UnsafeConfiguration("its fencegate.json is damaged: restore it before opening") from None

    def check(self, wanted: "Record") -> None:
        """Refuse to go on when the configuration is no longer the recorded one."""
        changed = [
            f"{field} is {getattr(wanted, field)!r} but was {getattr(self, field)!r}"
            for field in ("name", "guard", "form", "mode")
            if getattr(wanted, field) != getattr(self, field)
        ]
        if changed:
            raise UnsafeConfiguration(
                f"resource {wanted.name!r}: {', '.join(changed)}; its marks don't fit that. {reopen(wanted.name)}"
            )


def reopen(name: str) -> str:
    return f"`fencegate fence floor {name} VALUE`, with a value above every token issued so far, opens it again."
