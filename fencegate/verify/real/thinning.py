"""Leaves out what can't matter to the search for an order: where a resource was away for a while there are many calls
of unknown outcome, each of which may have happened at any time, and the orders to look at double with each."""

from dataclasses import replace

from fencegate.verify.history import History, Read, Write

CANDIDATES = 4


def thinned(history: History) -> History:
    """Without the unknown reads and writes that nobody can have seen.

    All that such a call can have done is to raise the mark: it is needed only where a refusal has to be explained.
    The few that are most likely to explain one are kept: with the smallest tokens above the refused one.
    """
    seen = {update for read in history.reads for update in read.updates or ()}
    seen |= {update for updates in history.final.values() for update in updates}
    unseen: list[Read | Write] = [read for read in history.reads if read.ended_us is None]
    unseen += [write for write in history.writes if write.told == "unknown" and write.update not in seen]
    keep: set[int] = set()
    for refused in history.writes:
        if refused.told == "refused":
            keep |= {id(each) for each in _explanations(refused, unseen)}
    gone = {id(each) for each in unseen} - keep
    return replace(
        history,
        reads=[read for read in history.reads if id(read) not in gone],
        writes=[write for write in history.writes if id(write) not in gone],
    )


def _explanations(refused: Write, unseen: list[Read | Write]) -> list[Read | Write]:
    able = [
        each
        for each in unseen
        if each.lock_key == refused.lock_key
        and (each.token or 0) > refused.token
        and (refused.ended_us is None or each.begun_us <= refused.ended_us)
    ]
    before = [each for each in able if each.begun_us <= refused.begun_us]
    return [
        *sorted(before, key=lambda each: each.token or 0)[:CANDIDATES],
        *sorted(able, key=lambda each: each.token or 0)[:CANDIDATES],
    ]
