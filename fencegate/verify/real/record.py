"""What a worker writes down as it goes, a line for each thing, before and after each call: whoever kills it loses
nothing that it was told."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

Arm = Literal["fenced", "unfenced"]
ARMS: tuple[Arm, Arm] = ("fenced", "unfenced")
Told = Literal["done", "refused", "unknown", "not-written"]


class Line(msgspec.Struct, frozen=True, tag_field="it", kw_only=True):
    """Where and when. Microseconds of the clock that all processes of the machine share."""

    episode: int
    arm: Arm
    client: str
    key: str
    at_us: int


class Granted(Line, frozen=True, tag="granted"):
    token: int
    asked_us: int
    until_us: int
    """Its own deadline, as it was then."""


class LetGo(Line, frozen=True, tag="let-go"):
    """It begins to release, or finds that its deadline has passed: since then it does not believe in it any more."""

    token: int
    since_us: int


class NotGranted(Line, frozen=True, tag="not-granted"):
    asked_us: int
    why: str


class Reads(Line, frozen=True, tag="reads"):
    number: int
    token: int


class HasRead(Line, frozen=True, tag="has-read"):
    number: int
    updates: tuple[str, ...] | None
    """None when it was refused, or nobody knows."""
    why: str = ""


class Writes(Line, frozen=True, tag="writes"):
    number: int
    token: int
    update: str


class HasWritten(Line, frozen=True, tag="has-written"):
    number: int
    told: Told
    why: str = ""


class Finished(Line, frozen=True, tag="finished"):
    """Its last round of an episode is over."""


Said = Granted | LetGo | NotGranted | Reads | HasRead | Writes | HasWritten | Finished
_decoder = msgspec.json.Decoder(Said)


class Record:
    """Where a worker writes: one system call for each line, so that none is lost or torn by a kill."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(self, line: Said) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


class Tail:
    """Reads what was added to a record since it was last looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def new(self) -> Iterator[Said]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                found = file.read()
        except FileNotFoundError:
            return
        whole = found[: found.rfind(b"\n") + 1]
        self._place += len(whole)
        for line in whole.splitlines():
            yield _decoder.decode(line)
