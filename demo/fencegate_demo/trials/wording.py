"""The sentences and rows about a use, the same for terminal and report."""

import re
from collections.abc import Iterator, Sequence

from fencegate_demo.trials.stage import UseOutcome, UseResult
from fencegate_demo.wording import Row, stale_writes_in_words


def rows(result: UseResult) -> Iterator[Row]:
    fenced, unfenced = (outcome.verdict for outcome in result.outcomes)
    yield Row("stale writes sent", str(fenced.stale_writes), str(unfenced.stale_writes))
    accepted = unfenced.stale_accepted
    yield Row("… of them accepted", str(fenced.stale_accepted), str(accepted), accepted > 0)
    yield Row("workers killed", str(fenced.killed), str(unfenced.killed))
    for name, value in fenced.findings.facts.items():
        other = unfenced.findings.facts[name]
        yield Row(_in_words(name), str(value), str(other), value != other)
    yield Row("what must not be", "\n".join(fenced.wrong) or "nothing", "\n".join(unfenced.wrong), bool(unfenced.wrong))


def outcome_in_words(outcome: UseOutcome) -> str:
    """What became of one arm, in a line."""
    verdict = outcome.verdict
    if verdict.stale_accepted or verdict.wrong:
        told = verdict.wrong[0] if verdict.wrong else "nothing wrong"
        return f"{verdict.stale_accepted} of {stale_writes_in_words(verdict.stale_writes)} accepted: {told}"
    return f"{stale_writes_in_words(verdict.stale_writes)} refused, nothing wrong"


def in_the_end(outcome: UseOutcome) -> str:
    verdict = outcome.verdict
    return (
        verdict.wrong[0]
        if verdict.wrong
        else ", ".join(f"{_in_words(name)} {value}" for name, value in verdict.findings.facts.items())
    )


def conclusion(results: Sequence[UseResult]) -> str:
    """One plain sentence about uses that are proved."""
    names = ", ".join(result.run.use.name for result in results)
    damaged = sum(bool(result.unfenced.verdict.wrong) for result in results)
    refused = sum(result.fenced.verdict.stale_writes for result in results)
    return (
        f"in use ({names}): with one process stopped past its lease and one killed, {refused} of "
        f"{stale_writes_in_words(refused)} refused and all is as it must be; without the check {damaged} of "
        f"{len(results)} went wrong."
    )


def _in_words(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f" {letter[0].lower()}", name)
