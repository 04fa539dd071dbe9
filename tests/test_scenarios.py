"""Stories about the state machine, told as text in `scenarios/`: commands, a line of dashes, and what comes of them.

`pytest tests/test_scenarios.py --rewrite-scenarios` writes down what comes of them now, to be read as a diff. What a
line may say is told in `scenario_commands`.
"""

import shlex
from pathlib import Path
from typing import Any

import pytest

from fencegate.core.commands import Command, Need, Step
from fencegate.core.machine import look_below, transition, wakes_at
from fencegate.core.model import Limits, LockRecord, Record, lock_entry
from fencegate.core.ports import Interval
from tests.scenario_answers import beside, describe, logged, seconds, told
from tests.scenario_commands import acquire, parse, us

FOLDER = Path(__file__).parent / "scenarios"
DASHES = "----"


class World:
    """The entries of a store, and the time."""

    def __init__(self) -> None:
        self.entries: dict[str, Record] = {}
        self.now = Interval(1_000_000, 1_000_000)
        self.limits = Limits()

    def tell(self, line: str) -> list[str]:
        """Do what one line says; what comes of it."""
        verb, *words = shlex.split(line)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        special = {
            "now": self._now,
            "limits": self._limits,
            "lose": self._lose,
            "look-below": self._look_below,
            "wakes": self._wakes,
            "show": self._show,
        }
        if verb in special:
            return special[verb](plain, options)
        return self._run(parse(verb, plain, options))

    def _now(self, plain: list[str], _: dict[str, str]) -> list[str]:
        earliest, latest = (plain[0].split("..") * 2)[:2]
        self.now = Interval(us(earliest), us(latest))
        return []

    def _limits(self, _: list[str], options: dict[str, str]) -> list[str]:
        counts = {"waiters": "max_waiters", "polls": "max_polls", "reentrancy": "max_reentrancy"}
        found: dict[str, Any] = {counts[name]: int(value) for name, value in options.items() if name in counts}
        found |= {f"{name}_us": us(value) for name, value in options.items() if name not in counts}
        self.limits = Limits(**found)
        return []

    def _lose(self, plain: list[str], __: dict[str, str]) -> list[str]:
        for entry in plain or list(self.entries):
            del self.entries[entry]
        return []

    def _look_below(self, plain: list[str], options: dict[str, str]) -> list[str]:
        who = acquire(plain, options | {"session": ""}).who
        below = lock_entry(options.get("key", "k")) + "/"
        records = [record for entry, record in self.entries.items() if entry.startswith(below)]
        found = look_below([r for r in records if isinstance(r, LockRecord)], who, self.now, AllEntries(self.entries))
        state = "free" if found.holder is None else f"held by {found.holder}" if found.holder else "closed"
        return [f"below: highest {found.highest}, {state}"]

    def _wakes(self, _: list[str], options: dict[str, str]) -> list[str]:
        record = self.entries.get(lock_entry(options.get("key", "k")))
        at_us = wakes_at(record) if isinstance(record, LockRecord) else None
        return ["time changes nothing" if at_us is None else f"time changes something at {seconds(at_us)}"]

    def _show(self, _: list[str], options: dict[str, str]) -> list[str]:
        lines = describe(self.entries.get(lock_entry(options.get("key", "k"))))
        return lines + [line for entry, record in sorted(self.entries.items()) for line in beside(entry, record)]

    def _run(self, command: Command) -> list[str]:
        step = decide(self.entries, command, self.now, self.limits)
        for entry, record in step.writes.items():
            if record is None:
                del self.entries[entry]
            else:
                self.entries[entry] = record
        lands = "" if step.not_after_us is None else f" [if it lands before {seconds(step.not_after_us + 1)}]"
        lines = [told(step.outcome) + lands]
        if step.events:
            lines.append(f"  log: {', '.join(logged(event) for event in step.events)}")
        lines += [f"  next: hand-over-all {later.request} {' '.join(later.lock_keys)}" for later in step.next]
        return lines


class AllEntries(dict[str, Record | None]):
    """Entries of a store: what is not there is absent."""

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: str) -> None:
        return None


def decide(entries: dict[str, Record], command: Command, now: Interval, limits: Limits) -> Step:
    """Ask the state machine, showing it only the entries that it wants to see."""
    view: dict[str, Record | None] = {}
    while isinstance(step := transition(view, command, now, limits), Need):
        view |= {entry: entries.get(entry) for entry in step.entries}
    return step


def play(text: str) -> str:
    """The scenario with everything that comes of it."""
    world = World()
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        commands = lines[: lines.index(DASHES)] if DASHES in lines else lines
        answers = [answer for line in commands if line and not line.startswith("#") for answer in world.tell(line)]
        blocks.append("\n".join([*commands, DASHES, *answers] if answers else commands))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_goes_as_it_is_told(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    played = play(text)
    if request.config.getoption("--rewrite-scenarios"):
        path.write_text(played)
    else:
        assert text == played
