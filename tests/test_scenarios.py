"""Stories about the state machine, told as text in `scenarios/`: commands, a line of dashes, and what comes of them.

`pytest tests/test_scenarios.py --rewrite-scenarios` writes down what comes of them now, to be read as a diff.

    now 1s | now 1s..3s         sets the time; two values: what is known of it
    limits waiters=2 …          waiters, polls, reentrancy, offer, retention, suspect, idle
    acquire OWNER [wait] [reentrant] [as=REQUEST] [named] [body=X] [ttl=30s] [on=REPLICA] [poll=ATTEMPT]
    take-up REQUEST    leave REQUEST [poll=ATTEMPT] [keep=15s]    renew REQUEST [owner=X] [ttl=30s]
    release REQUEST [owner=X]    force-release REASON    expire    forget
    lose                        the store forgets everything
    show                        the entries as they are

A request is called like its owner unless `as` says otherwise. A token is the microsecond of its grant, or one more than
the last. Every command may have `key=`.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencegate.core.commands import (
    Acquire,
    Command,
    Expire,
    ForceRelease,
    Forget,
    Granted,
    Leave,
    Need,
    Outcome,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Step,
    TakeUp,
)
from fencegate.core.machine import transition
from fencegate.core.model import Claimant, Done, Floor, Limits, LockRecord, Record, Waiter, lock_entry
from fencegate.core.ports import Interval

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent / "scenarios"
DASHES = "----"


def us(text: str) -> int:
    return round(float(text.removesuffix("s")) * 1_000_000)


def seconds(value_us: int) -> str:
    return f"{value_us / 1_000_000:.6f}".rstrip("0").rstrip(".") + "s"


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
        special = {"now": self._now, "limits": self._limits, "lose": self._lose, "show": self._show}
        if verb in special:
            return special[verb](plain, options)
        return self._run(parse(verb, plain, options))

    def _now(self, plain: list[str], _: dict[str, str]) -> list[str]:
        earliest, latest = (plain[0].split("..") * 2)[:2]
        self.now = Interval(us(earliest), us(latest))
        return []

    def _limits(self, _: list[str], options: dict[str, str]) -> list[str]:
        counts = {"waiters": "max_waiters", "polls": "max_polls", "reentrancy": "max_reentrancy"}
        found = {counts[name]: int(value) for name, value in options.items() if name in counts}
        found |= {f"{name}_us": us(value) for name, value in options.items() if name not in counts}
        self.limits = Limits(**found)
        return []

    def _lose(self, _: list[str], __: dict[str, str]) -> list[str]:
        self.entries.clear()
        return []

    def _show(self, _: list[str], options: dict[str, str]) -> list[str]:
        lines = describe(self.entries.get(lock_entry(options.get("key", "k"))))
        for entry, record in sorted(self.entries.items()):
            if isinstance(record, Done):
                lines.append(
                    f"{entry.split('/')[1]} {record.ending.value}, {record.left} left, until {seconds(record.until_us)}"
                )
            elif isinstance(record, Floor):
                lines.append(f"floor {record.token}")
        return lines

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
            events = (f"{event.kind} {event.owner_id} {event.token or ''}".strip() for event in step.events)
            lines.append(f"  log: {', '.join(events)}")
        return lines


def decide(entries: dict[str, Record], command: Command, now: Interval, limits: Limits) -> Step:
    """Ask the state machine, showing it only the entries that it wants to see."""
    view: dict[str, Record | None] = {}
    while isinstance(step := transition(view, command, now, limits), Need):
        view |= {entry: entries.get(entry) for entry in step.entries}
    return step


def parse(verb: str, plain: list[str], options: dict[str, str]) -> Command:
    key = options.get("key", "k")
    name = plain[0] if plain else ""
    poll = options.get("poll", "p1")
    lock_token = f"{name}.secret"
    commands: dict[str, Callable[[], Command]] = {
        "acquire": lambda: acquire(key, plain, options),
        "take-up": lambda: TakeUp(key, name),
        "leave": lambda: Leave(key, name, poll, us(options.get("keep", "0s"))),
        "renew": lambda: Renew(key, lock_token, options.get("owner"), us(options["ttl"]) if "ttl" in options else None),
        "release": lambda: Release(key, lock_token, options.get("owner")),
        "force-release": lambda: ForceRelease(key, " ".join(plain)),
        "expire": lambda: Expire(key),
        "forget": lambda: Forget(key),
    }
    return commands[verb]()


def acquire(key: str, plain: list[str], options: dict[str, str]) -> Acquire:
    owner, *flags = plain
    request = options.get("as", owner)
    who = Claimant(request, f"{request}.secret", owner, us(options.get("ttl", "30s")), options.get("body", ""))
    replica, attempt = options.get("on", "r1"), options.get("poll", "p1")
    return Acquire(key, who, replica, attempt, "wait" in flags, "named" in flags, "reentrant" in flags)


def told(outcome: Outcome) -> str:
    match outcome:
        case Granted(hold):
            return f"granted to {hold.who.request}, token {hold.token}, until {seconds(hold.expires_us)}"
        case Renewed(hold):
            return f"renewed {hold.who.request}, token {hold.token}, until {seconds(hold.expires_us)}"
        case Released(left):
            return f"released, {left} left"
        case Queued(ahead):
            return f"queued, {ahead} ahead"
        case Refused(error):
            members = ", ".join(f"{name} {value}" for name, value in error.members.items())
            return f"refused: {error.code}" + (f" ({members})" if members else "")
        case _:
            return "nothing"


def describe(record: Record | None) -> list[str]:
    if not isinstance(record, LockRecord):
        return ["no record"]
    lines = [f"last token {record.last_token}"]
    lines += [
        f"held by {hold.who.request} of {hold.who.owner_id}, token {hold.token}, until {seconds(hold.expires_us)}"
        + (f", {hold.renewals} renewals" if hold.renewals else "")
        for hold in record.holds
    ]
    if record.offer is not None:
        lines.append(f"offered to {place(record.offer.waiter)}, until {seconds(record.offer.until_us)}")
    return lines + [f"waits: {place(waiter)}" for waiter in record.queue]


def place(waiter: Waiter) -> str:
    polls = f"polls {' '.join(waiter.attempts)}" if waiter.attempts else f"kept until {seconds(waiter.keep_until_us)}"
    suspect = f", suspect since {seconds(waiter.suspect_us)}" if waiter.suspect_us else ""
    return f"{waiter.who.request} on {waiter.replica}, {polls}{suspect}"


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
