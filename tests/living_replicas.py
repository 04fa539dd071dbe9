"""What the replicas that live do for those who wait with them, when the faults have stopped."""

from typing import TYPE_CHECKING

from fencegate.core.commands import Acquire, AcquireAll, Expire, Release
from fencegate.core.machine import wakes_at
from fencegate.core.model import SESSIONS, LockRecord, ancestors, lock_entry, session_entry

if TYPE_CHECKING:
    from tests.test_machine_stateful import Locks


def parts(command: Acquire | AcquireAll) -> tuple[Acquire, ...]:
    return (command,) if isinstance(command, Acquire) else command.parts


class Tending:
    """What the replicas that live do for those who wait with them: look at a lock when it, or one above it, has
    changed, or when time says so. Each who waits lets go as soon as it has the lock."""

    def __init__(self, locks: "Locks") -> None:
        self.locks = locks
        self.versions: dict[str, int] = {}

    def tend(self) -> None:
        locks = self.locks
        self.look_below()
        for _ in range(100):
            changed = self.changed()
            for key in changed:
                locks.run(Expire(key))
            for poll in list(locks.polls.values()):
                self.serve(poll)
            while locks.next:
                locks.run(locks.next.pop(0))
            if not changed:
                break
        else:
            raise AssertionError("it never comes to rest")

    def changed(self) -> list[str]:
        """Locks to look at again."""
        store = self.locks.store
        versions = {entry: version for entry, (version, _) in store.entries.items()}
        moved = {entry for entry, version in versions.items() if self.versions.get(entry) != version}
        moved |= set(self.versions) - set(versions)
        found = []
        for key in self.locks.keys:
            record = store.record(key)
            at_us = wakes_at(record)
            sessions = {session_entry(hold.who.terms.session) for hold in record.holds if hold.who.terms.session}
            due = at_us is not None and at_us <= store.now().earliest
            due = due or any(self.is_due(entry) for entry in sessions)
            if due or moved.intersection([lock_entry(key), *map(lock_entry, ancestors(key)), *sessions]):
                found.append(key)
        self.versions = versions
        return found

    def is_due(self, entry: str) -> bool:
        session = self.locks.store.session(entry.removeprefix(SESSIONS))
        return session is not None and session.ended is None and session.expires_us <= self.locks.store.now().earliest

    def serve(self, poll: Acquire | AcquireAll) -> None:
        locks, first = self.locks, parts(poll)[0]
        place = first.who.request, first.attempt
        if place not in locks.polls:
            return
        records = [locks.store.record(part.lock_key) for part in parts(poll)]
        if all(r.offer is not None and r.offer.waiter.who.request == first.who.request for r in records):
            locks.run(locks.taking(poll))
        elif not all(self.stands(record, first) for record in records):
            locks.run(poll)
        if place not in locks.polls:
            self.let_go(poll)

    def stands(self, record: LockRecord, poll: Acquire) -> bool:
        if record.offer is not None and record.offer.waiter.who.request == poll.who.request:
            return True
        if any(hold.pending and hold.who.request == poll.who.request for hold in record.holds):
            return True
        return any(poll.attempt in waiter.attempts and not waiter.suspect_us for waiter in record.queue)

    def look_below(self) -> None:
        locks = self.locks
        for key, record in locks.store.records().items():
            for hold in record.holds:
                waiting = [poll for place, poll in locks.polls.items() if place[0] == hold.who.request]
                if hold.pending and waiting:
                    locks.looks.clear()
                    locks.look_below_a_pending_hold(self.which(key))
                    if locks.looks:
                        locks.run(locks.looks.pop())
                    if not any(place[0] == hold.who.request for place in locks.polls):
                        self.let_go(waiting[0])

    def which(self, key: str) -> int:
        pending = [k for k, r in self.locks.store.records().items() for hold in r.holds if hold.pending]
        return pending.index(key) if key in pending else 0

    def let_go(self, poll: Acquire | AcquireAll) -> None:
        for part in parts(poll):
            for hold in self.locks.store.record(part.lock_key).holds:
                if hold.who.request == part.who.request and not hold.pending:
                    self.locks.run(Release(part.lock_key, hold.who.lock_token))
