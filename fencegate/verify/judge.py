"""Decides whether a history keeps the invariants of the design. It knows nothing of how the history came about."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from fencegate.verify.history import History, Hold, Violation, Write
from fencegate.verify.linearizable import Operation, explain
from fencegate.verify.mutex import mutexes
from fencegate.verify.registers import operations
from fencegate.verify.waiting import waited_too_long

T = TypeVar("T", Hold, Write)


def judge(history: History, *, fenced: bool = True) -> list[Violation]:
    """All that is wrong with it. `fenced`: the resource checked tokens, so that nothing may be lost."""
    found = list(_tokens(history.holds, commits_lost=history.commits_lost))
    leases_count = not history.clocks_moved and not history.commits_lost
    if leases_count:
        found += _overlaps(history.holds)
        found += _came_back(history)
    if fenced:
        found += _lost(history)
        found += _half_done(history)
        found += _miscounted(history)
        found += _stale(history)
        if not found:
            found += _unexplained(operations(history))
    if leases_count and not found:
        found += _unexplained(mutexes(history.holds))
    found += waited_too_long(history)
    return found


def lost_updates(history: History) -> list[Write]:
    """Acknowledged, and not there."""
    return [
        write
        for write in history.writes
        if write.value is None and write.told == "done" and write.update not in history.final[write.lock_key]
    ]


def _tokens(holds: Iterable[Hold], *, commits_lost: bool) -> Iterator[Violation]:
    """I1: no token twice (but among those who share a lock); and a grant that was told before another was asked for has
    the smaller one. A store that forgets may forget that a group of readers was over: then whoever joins it has its
    token, and where a writer came in between, the fence refuses that, as it should."""
    for lock_key, of_key in _by_key(holds).items():
        seen: dict[int, Hold] = {}
        for hold in sorted(of_key, key=lambda hold: hold.granted_us):
            other = seen.setdefault(hold.token, hold)
            if other is not hold and not (other.shared and hold.shared):
                yield Violation("I1", f"{lock_key}: {other.client} and {hold.client} both have token {hold.token}")
        told = sorted(of_key, key=lambda hold: hold.granted_us)
        highest: Hold | None = None
        behind = 0
        for hold in sorted(of_key, key=lambda hold: hold.asked_us):
            while behind < len(told) and told[behind].granted_us < hold.asked_us:
                if highest is None or told[behind].token > highest.token:
                    highest = told[behind]
                behind += 1
            same = highest is not None and highest.shared and hold.shared
            joins_again = commits_lost and hold.shared and seen[hold.token] is not hold and seen[hold.token].shared
            if highest is not None and highest.token >= hold.token + same and not joins_again:
                yield Violation(
                    "I1",
                    f"{lock_key}: {hold.client} was given {hold.token} after {highest.client} had {highest.token}",
                )


def _overlaps(holds: Iterable[Hold]) -> Iterator[Violation]:
    """I5 and I7: as long as no clock jumps and the store forgets nothing, no two believe that they hold a lock."""
    for lock_key, of_key in _by_key(holds).items():
        last: Hold | None = None
        for hold in sorted(of_key, key=lambda hold: hold.granted_us):
            if last is not None and hold.granted_us < last.believed_until_us and not (hold.shared and last.shared):
                yield Violation(
                    "I5", f"{lock_key}: {hold.client} ({hold.token}) and {last.client} ({last.token}) held it at once"
                )
            if last is None or hold.believed_until_us > last.believed_until_us:
                last = hold  # of those who share it the last; one who does not would have been found above


def _came_back(history: History) -> Iterator[Violation]:
    """I4: what was given up for lost, so that others could be told that it was not done, stays undone. (A store that
    forgets, or whose clock jumps, may take it after all.)"""
    for commit in history.came_back:
        yield Violation("I4", f"the commit {commit} landed after it was said that it never will")


def _lost(history: History) -> Iterator[Violation]:
    """I4: what was acknowledged is there, what was refused is not, and nothing is there twice."""
    for write in lost_updates(history):
        yield Violation("I4", f"{write.lock_key}: {write.update} was acknowledged and is not there")
    for write in history.writes:
        if write.value is None and write.told == "refused" and write.update in history.final[write.lock_key]:
            yield Violation("I4", f"{write.lock_key}: {write.update} was refused and is there")
    for lock_key, updates in history.final.items():
        for update in {update for update in updates if updates.count(update) > 1}:
            yield Violation("I4", f"{lock_key}: {update} is there more than once")


def _stale(history: History) -> Iterator[Violation]:
    """I2 and I3: once a token was shown to the resource, nothing below it is accepted."""
    for lock_key, writes in _by_key(history.writes).items():
        shown = sorted(
            [(write.ended_us, write.token) for write in writes if write.told == "done" and write.ended_us is not None]
            + [
                (read.ended_us, read.token)
                for read in history.reads
                if read.lock_key == lock_key and read.token is not None and read.ended_us is not None
            ]
        )
        highest, place = 0, 0
        for write in sorted(writes, key=lambda write: write.begun_us):
            while place < len(shown) and shown[place][0] < write.begun_us:
                highest = max(highest, shown[place][1])
                place += 1
            there = write.told == "done" or (write.value is None and write.update in history.final[lock_key])
            if write.token < highest and there:
                yield Violation("I3", f"{lock_key}: {write.update} under {write.token} was accepted after {highest}")


def _half_done(history: History) -> Iterator[Violation]:
    """I4: what was written to several keys in one step is at all of them, or at none."""
    for write in history.writes:
        if write.group and write.lock_key == write.group[0]:
            there = [key for key in write.group if write.update in history.final[key]]
            if there and len(there) < len(write.group):
                yield Violation("I4", f"{write.update} was written to {list(write.group)}, and is at {there} only")
            if write.told == "refused" and not _has_cause(history, write):
                yield Violation("I4", f"{write.update} was refused at {list(write.group)}, and nobody came after it")


def _has_cause(history: History, refused: Write) -> bool:
    """Whether a higher token may have been shown at one of its keys before it was refused."""
    tokens = {write.lock_key: write.token for write in history.writes if write.update == refused.update}
    shown = [(read.lock_key, read.token or 0, read.begun_us) for read in history.reads]
    shown += [(write.lock_key, write.token, write.begun_us) for write in history.writes]
    ended_us = refused.ended_us or 0
    return any(key in tokens and token > tokens[key] and begun_us < ended_us for key, token, begun_us in shown)


def _miscounted(history: History) -> Iterator[Violation]:
    """I4: each acknowledged write added one, each of unknown outcome one or none."""
    for key in history.counters:
        told = [write.told for write in history.writes if write.lock_key == key]
        least, most = told.count("done"), told.count("done") + told.count("unknown")
        found = int((history.final[key] or ("0",))[0])
        if not least <= found <= most:
            yield Violation("I4", f"{key}: counted to {found}, after {least} acknowledged and {most - least} unknown")


def _unexplained(by_key: Mapping[str, Sequence[Operation]]) -> Iterator[Violation]:
    for lock_key, of_key in by_key.items():
        smallest = explain(of_key)
        if smallest is not None:
            told = "; ".join(str(operation) for operation in smallest)
            yield Violation("linearizable", f"{lock_key}: no order of these explains what was seen: {told}")


def _by_key(items: Iterable[T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for item in items:
        found[item.lock_key].append(item)
    return found
