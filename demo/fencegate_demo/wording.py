"""The sentences and rows about a scenario, the same for terminal and report."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fencegate_demo.stage import Outcome, Result
from fencegate_demo.timeline import MarkKind

SIGN_WORDS: dict[MarkKind, str] = {
    "accepted": "accepted",
    "refused": "refused: 412 STALE_TOKEN",
    "corrupting": "stale, yet accepted",
}

CELL_WORDS = "stale writes that were refused, of how many came; and how many got in without the check, or the claim"


class Row(NamedTuple):
    """A line of the verdict: the same thing in both arms, and whether the unfenced one is bad news."""

    name: str
    fenced: str
    unfenced: str
    bad: bool = False


def rows(result: Result) -> Iterator[Row]:
    fenced, unfenced = (outcome.verdict for outcome in result.outcomes)
    yield Row("stale writes sent", str(fenced.stale_writes), str(unfenced.stale_writes))
    accepted = unfenced.stale_accepted
    yield Row("… of them accepted", str(fenced.stale_accepted), str(accepted), accepted > 0)
    yield Row("acknowledged updates lost", _lost(fenced.lost), _lost(unfenced.lost), bool(unfenced.lost))
    yield Row("the resource holds", " ".join(fenced.holding.updates), " ".join(unfenced.holding.updates))
    yield Row("written last by", fenced.holding.owner or "nobody", unfenced.holding.owner or "nobody")


def _lost(updates: Sequence[str]) -> str:
    return f"{len(updates)} ({' '.join(updates)})" if updates else "0"


def outcome_in_words(outcome: Outcome) -> str:
    """What became of one arm, in a line."""
    verdict = outcome.verdict
    refused = verdict.stale_writes - verdict.stale_accepted
    if verdict.stale_accepted or verdict.lost:
        lost = f"{' '.join(verdict.lost)} lost" if verdict.lost else "nothing lost"
        return f"{verdict.stale_accepted} of {stale_writes_in_words(verdict.stale_writes)} accepted, {lost}"
    return f"{refused} of {stale_writes_in_words(verdict.stale_writes)} refused, nothing lost"


def stale_writes_in_words(number: int) -> str:
    return f"{number} stale write{'' if number == 1 else 's'}"


def conclusion(results: Sequence[Result]) -> str:
    """One plain sentence about scenarios that are proved."""
    sent = sum(result.fenced.verdict.stale_writes for result in results)
    accepted = sum(result.unfenced.verdict.stale_accepted for result in results)
    lost = sum(len(result.unfenced.verdict.lost) for result in results)
    return (
        f"with fencing tokens every stale write ({sent} of {sent}) was refused by the resource and nothing was "
        f"lost; without {_missing(results)} {accepted} got in, and {lost} acknowledged updates vanished."
    )


def _missing(results: Sequence[Result]) -> str:
    about_claims = {result.run.scenario.is_about_claims for result in results}
    if len(about_claims) > 1:
        return "the check, or the claim,"
    return "the claim" if True in about_claims else "the check"
