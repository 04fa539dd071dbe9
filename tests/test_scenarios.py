"""Stories about the state machine, told as text in `scenarios/`: commands, a line of dashes, and what comes of them.

`pytest tests/test_scenarios.py --rewrite-scenarios` writes down what comes of them now, to be read as a diff.

    now 1s | now 1s..3s         sets the time; two values: what is known of it
    limits waiters=2 …          waiters, polls, reentrancy, offer, retention, suspect, idle
    acquire OWNER [wait] [reentrant] [as=REQUEST] [named] [body=X] [ttl=30s] [on=REPLICA] [poll=ATTEMPT] [wait-for=30s]
            [shared] [hierarchical] [limit=2] [priority=5] [delay=2s] [max-hold=6s] [session=S]
    take-up REQUEST    leave REQUEST [poll=ATTEMPT] [keep=15s]    renew REQUEST [owner=X] [ttl=30s]
    confirm REQUEST token=… [highest=…] [blocked]    look-below OWNER: what a hierarchical lock would find
    release REQUEST [owner=X]    force-release REASON [grace=5s]    expire    forget
    acquire-all OWNER KEY KEY:shared … [wait] and the rest as for acquire
    hand-over-all, take-up-all, leave-all, renew-all, release-all REQUEST KEY KEY …
    open S [owner=A] [ttl=30s]    renew-session S    end-session S    expire-session S    forget-session S
    drop S REQUEST              what becomes of a lock of the session, or of a place, when it ended
    lose [ENTRY]                the store forgets everything, or this entry
    wakes                       when time alone next changes something
    show                        the entries as they are

A request is called like its owner unless `as` says otherwise. A token is the microsecond of its grant, or one more than
the last. Every command may have `key=`. What should be asked next is told as `next`, and is not done by itself.
"""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Command,
    Confirm,
    Drop,
    EndSession,
    Expire,
    ExpireSession,
    ForceRelease,
    Forget,
    ForgetSession,
    Granted,
    GrantedAll,
    HandOverAll,
    Leave,
    LeaveAll,
    Need,
    OpenSession,
    Outcome,
    Pending,
    Queued,
    Refused,
    Release,
    ReleaseAll,
    Released,
    ReleasedAll,
    Renew,
    RenewAll,
    Renewed,
    RenewedAll,
    RenewSession,
    Revoking,
    SessionIs,
    Step,
    TakeUp,
    TakeUpAll,
)
from fencegate.core.machine import look_below, transition, wakes_at
from fencegate.core.model import (
    LOCKS,
    PLAIN,
    Claimant,
    Done,
    Event,
    Floor,
    Hold,
    Limits,
    LockRecord,
    Member,
    Record,
    Revocation,
    Session,
    Terms,
    Waiter,
    lock_entry,
)
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
        found = {counts[name]: int(value) for name, value in options.items() if name in counts}
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


def parse(verb: str, plain: list[str], options: dict[str, str]) -> Command:
    key = options.get("key", "k")
    name, *rest = plain or [""]
    poll = options.get("poll", "p1")
    owner, lock_token = options.get("owner"), f"{name}.secret"
    ttl_us = us(options["ttl"]) if "ttl" in options else None
    keep_us = us(options.get("keep", "0s"))
    keys = tuple(rest)
    commands: dict[str, Callable[[], Command]] = {
        "acquire": lambda: acquire(plain, options),
        "take-up": lambda: TakeUp(key, name),
        "confirm": lambda: Confirm(
            key, name, int(options["token"]), int(options.get("highest", "0")), "blocked" in rest
        ),
        "leave": lambda: Leave(key, name, poll, keep_us),
        "renew": lambda: Renew(key, lock_token, owner, ttl_us),
        "release": lambda: Release(key, lock_token, owner),
        "force-release": lambda: ForceRelease(key, " ".join(plain), us(options.get("grace", "0s"))),
        "drop": lambda: Drop(key, name, rest[0]),
        "expire": lambda: Expire(key),
        "forget": lambda: Forget(key),
        "acquire-all": lambda: acquire_all(plain, options),
        "hand-over-all": lambda: HandOverAll(keys, name),
        "take-up-all": lambda: TakeUpAll(keys, name),
        "leave-all": lambda: LeaveAll(tuple(Leave(one, name, poll, keep_us) for one in keys)),
        "renew-all": lambda: RenewAll(tuple(Renew(one, lock_token, owner, ttl_us) for one in keys)),
        "release-all": lambda: ReleaseAll(tuple(Release(one, lock_token, owner) for one in keys)),
        "open": lambda: OpenSession(name, owner or "A", ttl_us or 30_000_000),
        "renew-session": lambda: RenewSession(name, owner, ttl_us),
        "end-session": lambda: EndSession(name),
        "expire-session": lambda: ExpireSession(name),
        "forget-session": lambda: ForgetSession(name),
    }
    return commands[verb]()


def acquire(plain: list[str], options: dict[str, str]) -> Acquire:
    owner, *flags = plain
    request = options.get("as", owner)
    terms = Terms(
        shared="shared" in flags,
        limit=int(options.get("limit", "0")),
        priority=int(options.get("priority", "0")),
        lock_delay_us=us(options.get("delay", "0s")),
        max_hold_us=us(options.get("max-hold", "0s")),
        session=options.get("session", ""),
        hierarchical="hierarchical" in flags,
    )
    ttl_us, body = us(options.get("ttl", "30s")), options.get("body", "")
    who = Claimant(request, f"{request}.secret", owner, ttl_us, body, None, terms if terms != PLAIN else None)
    return Acquire(
        options.get("key", "k"),
        who,
        options.get("on", "r1"),
        options.get("poll", "p1"),
        "wait" in flags,
        "named" in flags,
        "reentrant" in flags,
        us(options.get("wait-for", "0s")),
    )


def acquire_all(plain: list[str], options: dict[str, str]) -> AcquireAll:
    owner, *words = plain
    flags = [word for word in words if word in ("wait", "named")]
    wanted = sorted(word for word in words if word not in flags)
    one = acquire([owner, *flags], options)
    group = tuple(word.partition(":")[0] for word in wanted)
    return AcquireAll(
        tuple(
            replace(one, lock_key=key, who=replace(one.who, special=replace(one.who.terms, shared=shared, group=group)))
            for key, shared in ((word.partition(":")[0], word.endswith(":shared")) for word in wanted)
        )
    )


def told(outcome: Outcome) -> str:
    match outcome:
        case Granted(hold):
            return f"granted to {lease(hold)}"
        case Pending(hold):
            return f"pending for {lease(hold)}"
        case GrantedAll(holds):
            return f"granted all: {'; '.join(lease(hold) for hold in holds)}"
        case Renewed(hold, revoked):
            return f"renewed {lease(hold)}{taken(revoked)}"
        case RenewedAll(parts):
            return f"renewed all: {'; '.join(lease(part.hold) + taken(part.revoked) for part in parts)}"
        case Released(left):
            return f"released, {left} left"
        case ReleasedAll(left):
            return f"released all, {' and '.join(str(one) for one in left)} left"
        case Revoking(at_us):
            return f"revoked, to be taken at {seconds(at_us)}"
        case SessionIs(session):
            return f"session {life(session)}"
        case Queued(ahead):
            return f"queued, {ahead} ahead"
        case Refused(error):
            members = ", ".join(f"{name} {value}" for name, value in error.members.items())
            return f"refused: {error.code}" + (f" ({members})" if members else "")
        case _:
            return "nothing"


def lease(hold: Hold) -> str:
    slot = "" if hold.slot is None else f", slot {hold.slot}"
    return f"{hold.who.request}, token {hold.token}{slot}, until {seconds(hold.expires_us)}"


def taken(revoked: Revocation | None) -> str:
    return "" if revoked is None else f", revoked ({revoked.reason}) and taken at {seconds(revoked.at_us)}"


def life(session: Session) -> str:
    ended = "" if session.ended is None else f", {session.ended.value} at {seconds(session.ended_us)}"
    revoked = "".join(f"; {lock.lock_key} {lock.token}{taken(lock.revoked)}" for lock in session.revoked)
    return f"of {session.owner_id}, until {seconds(session.expires_us)}{ended}{revoked}"


def logged(event: Event) -> str:
    where = "" if event.lock_key == "k" else f" at {event.lock_key}"
    return f"{event.kind} {event.owner_id} {event.token or ''}".strip() + where


def describe(record: Record | None) -> list[str]:
    if not isinstance(record, LockRecord):
        return ["no record"]
    lines = [f"last token {record.last_token}"]
    lines += [
        f"{'pending for' if hold.pending else 'held by'} {hold.who.request} of {hold.who.owner_id}, token {hold.token}"
        + ("" if hold.slot is None else f", slot {hold.slot}")
        + (f", under {hold.who.terms.session}" if hold.who.terms.session else f", until {seconds(hold.expires_us)}")
        + (f", {hold.renewals} renewals" if hold.renewals else "")
        for hold in record.holds
    ]
    if record.revoked is not None:
        lines.append(f"revoked ({record.revoked.reason}), to be taken at {seconds(record.revoked.at_us)}")
    if record.closed_until_us:
        below = ", and all below it" if record.closed_below else ""
        lines.append(f"closed until {seconds(record.closed_until_us)}{below}")
    if record.offer is not None:
        lines.append(f"offered to {place(record.offer.waiter)}, until {seconds(record.offer.until_us)}")
    return lines + [f"waits: {place(waiter)}" for waiter in record.queue]


def beside(entry: str, record: Record) -> list[str]:
    """What an entry says that is not a lock's."""
    if isinstance(record, Done):
        _, request, lock_key = entry.split("/", 2)
        where = "" if lock_key == "k" else f" at {lock_key}"
        ended = f"{record.ending.value}, {record.left} left, until {seconds(record.until_us)}"
        return [f"{request}{where} {ended}"]
    if isinstance(record, Floor):
        return [f"floor {record.token}"]
    if isinstance(record, Session):
        return [f"session {entry.split('/')[1]} {life(record)}"]
    if isinstance(record, Member):
        _, session_id, request, _ = entry.split("/", 3)
        return [f"member of {session_id}: {request} at {record.lock_key}"]
    assert entry.startswith(LOCKS)
    return []


def place(waiter: Waiter) -> str:
    polls = f"polls {' '.join(waiter.attempts)}" if waiter.attempts else f"kept until {seconds(waiter.keep_until_us)}"
    ends = f", gone at {seconds(waiter.keep_until_us)}" if waiter.attempts and waiter.keep_until_us else ""
    suspect = f", suspect since {seconds(waiter.suspect_us)}" if waiter.suspect_us else ""
    return f"{waiter.who.request} on {waiter.replica}, {polls}{ends}{suspect}"


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
