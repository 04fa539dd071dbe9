"""From what workers wrote down to histories that can be judged, one for each arm of an episode."""

from collections import defaultdict
from dataclasses import dataclass, field

from fencegate.verify.history import History, Hold, Read, Violation, Write
from fencegate.verify.judge import judge
from fencegate.verify.linearizable import Undecided
from fencegate.verify.real.record import Arm, Finished, Granted, HasRead, HasWritten, LetGo, Reads, Said, Writes
from fencegate.verify.real.thinning import thinned

CROSSED = "x"
"""How the name of such a key ends."""


@dataclass(slots=True)
class Ledger:
    """One arm of one episode, as it goes."""

    history: History = field(default_factory=History)
    crossed: History = field(default_factory=History)
    """Of a key that is written and deleted by turns: nothing stays there, so only the order of tokens is judged."""
    not_written: list[Write] = field(default_factory=list)
    """Of these the resource was said to know nothing."""
    finished: set[str] = field(default_factory=set)
    _holds: dict[tuple[str, str, int], Hold] = field(default_factory=dict)
    _reads: dict[tuple[str, int], Read] = field(default_factory=dict)
    _writes: dict[tuple[str, int], Write] = field(default_factory=dict)
    thinking: set[str] = field(default_factory=set)
    """Who has read under a lock and has not written yet: whoever is stopped there comes back with a stale write."""

    def hear(self, said: Said) -> None:
        history = self.crossed if said.key.endswith(CROSSED) else self.history
        match said:
            case Granted():
                hold = Hold(said.client, said.key, said.token, said.asked_us, said.at_us, said.until_us)
                history.holds.append(hold)
                self._holds[said.client, said.key, said.token] = hold
            case LetGo():
                self._holds[said.client, said.key, said.token].believed_until_us = said.since_us
                self.thinking.discard(said.client)
            case Reads():
                read = Read(said.client, said.key, said.token, said.at_us)
                history.reads.append(read)
                self._reads[said.client, said.number] = read
            case HasRead():
                if said.updates is not None:
                    read = self._reads[said.client, said.number]
                    read.ended_us, read.updates = said.at_us, said.updates
                    self.thinking.add(said.client)
            case Writes():
                write = Write(said.client, said.key, said.token, said.update, said.at_us)
                history.writes.append(write)
                self.thinking.discard(said.client)
                self._writes[said.client, said.number] = write
            case HasWritten():
                self._has_written(self._writes[said.client, said.number], said)
            case Finished():
                self.finished.add(said.client)

    def _has_written(self, write: Write, said: HasWritten) -> None:
        write.ended_us = said.at_us
        if said.told == "not-written":
            (self.crossed if said.key.endswith(CROSSED) else self.history).writes.remove(write)
            self.not_written.append(write)
        else:
            write.told = said.told

    def violations(self, *, fenced: bool) -> list[Violation]:
        """All that is wrong with it; what the judge can't decide is said as a remark, not as a violation."""
        final = self.history.final
        found = [
            Violation("I4", f"{write.lock_key}: {write.update} was said not to be written and is there")
            for write in self.not_written
            if fenced and write.update in final.get(write.lock_key, ())
        ]
        if fenced:
            found += [
                Violation("I3", f"{write.lock_key}: {write.update} under {write.token} was accepted after a higher one")
                for write in stale(self.crossed)
                if write.told == "done"
            ]
        return found + judge(self.crossed, fenced=False) + judge(thinned(self.history), fenced=fenced)

    @property
    def operations(self) -> int:
        both = (self.history, self.crossed)
        return sum(len(history.holds) + len(history.reads) + len(history.writes) for history in both)


def decided(ledger: Ledger, *, fenced: bool) -> tuple[list[Violation], str | None]:
    """The violations, and why not all could be judged."""
    try:
        return ledger.violations(fenced=fenced), None
    except Undecided as error:
        return [], str(error)


def stale(history: History) -> list[Write]:
    """Writes that came after a higher token was shown to the resource, or were refused for it."""
    shown: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for read in history.reads:
        if read.token is not None and read.ended_us is not None:
            shown[read.lock_key].append((read.ended_us, read.token))
    for write in history.writes:
        if write.told == "done" and write.ended_us is not None:
            shown[write.lock_key].append((write.ended_us, write.token))
    found = []
    for write in history.writes:
        highest = max((token for at_us, token in shown[write.lock_key] if at_us < write.begun_us), default=0)
        if write.told == "refused" or write.token < highest:
            found.append(write)
    return found


class Ledgers:
    """Those of all episodes that are not judged yet."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, Arm], Ledger] = {}

    def of(self, episode: int, arm: Arm) -> Ledger:
        return self._of.setdefault((episode, arm), Ledger())

    def hear(self, said: Said) -> None:
        self.of(said.episode, said.arm).hear(said)

    def forget(self, episode: int) -> None:
        for arm in ("fenced", "unfenced"):
            self._of.pop((episode, arm), None)
