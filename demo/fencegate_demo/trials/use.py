"""What a use on trial consists of: a place of its own, work for the workers, and a look at what is there in the end."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from fencegate.gateway.resources import ResourceSettings
from fencegate_demo import uses
from fencegate_demo.trials.events import Touched

if TYPE_CHECKING:
    from fencegate_demo.trials.bench import Bench

Arm = Literal["fenced", "unfenced"]
Resource = Literal["database", "rows", "objects"]
Role = Literal["stopped", "killed", "free"]
"""Of a worker."""


class Place(msgspec.Struct, frozen=True):
    """Where one arm of a trial happens. `name` is in every name that it uses, so that it is nobody else's."""

    name: str
    arm: Arm
    folder: str
    guard: str | None = None
    resource: Resource = "database"

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def database(self) -> str:
        """The database of a program that writes to one itself."""
        return f"sqlite:///{self.path / 'app.db'}"

    @property
    def settings(self) -> ResourceSettings:
        """The protected resource of a program that writes through the gateway."""
        url = f"file://{self.path / 'objects'}" if self.resource == "objects" else f"sqlite:///{self.path / 'rows.db'}"
        mode = "enforce" if self.arm == "fenced" else "shadow"
        return ResourceSettings.of(self.name, {"url": url, "mode": mode, "guard": self.guard})


@dataclass(frozen=True, slots=True)
class Findings:
    """What the resource holds in the end: in numbers, and what of it must not be."""

    facts: Mapping[str, int | str]
    wrong: Sequence[str] = field(default=())


def nothing(_place: Place) -> None:
    """What happens meanwhile, in most uses."""


@dataclass(frozen=True, slots=True)
class Use:
    """A use, and how it is put to the test."""

    name: str
    summary: str
    resource: Resource
    prepare: Callable[[Place], None]
    """Makes what the program finds when it starts."""
    work: Callable[["Bench"], None]
    """What each worker does, in a process of its own."""
    examine: Callable[[Place, Sequence[Touched]], Awaitable[Findings]]
    """Reads the resource itself; no gateway and no worker is asked."""
    guard: str | None = None
    """Which lock protects a key, where the gateway has to know."""
    meanwhile: Callable[[Place], None] = nothing
    """What changes in the world while the first worker is stopped."""

    @property
    def program(self) -> Path:
        """The file to copy."""
        return Path(uses.__file__).with_name(f"{self.name}.py")

    def place(self, prefix: str, arm: Arm, folder: Path) -> Place:
        name = f"{prefix}-{self.name}-{arm}"
        return Place(name, arm, str(folder / name), self.guard, self.resource)

    def run(self, prefix: str, folder: Path) -> "UseRun":
        return UseRun(self, self.place(prefix, "fenced", folder), self.place(prefix, "unfenced", folder))


@dataclass(frozen=True, slots=True)
class UseRun:
    """One use: the same workload, fenced and unfenced."""

    use: Use
    fenced: Place
    unfenced: Place

    @property
    def places(self) -> tuple[Place, Place]:
        return self.fenced, self.unfenced
