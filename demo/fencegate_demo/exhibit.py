"""What is shown of a run, whether of a scenario or of a use. Terminal and report show the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fencegate_demo import timeline
from fencegate_demo.plan import NotRun
from fencegate_demo.scenarios import BY_CHECK
from fencegate_demo.stage import Result
from fencegate_demo.timeline import Timeline, TokenNames
from fencegate_demo.trials import picture
from fencegate_demo.trials import wording as uses_wording
from fencegate_demo.trials.stage import UseResult
from fencegate_demo.wording import Row, conclusion, outcome_in_words, rows


@dataclass(frozen=True, slots=True)
class ArmShown:
    """One arm: its picture, and in words and numbers what became of it."""

    arm: str
    what: str
    """By what it differs from the other."""
    words: str
    good: bool
    timeline: Timeline
    stale_writes: int
    stale_accepted: int
    damage: int
    """Acknowledged updates that were lost, or other things in the resource that must not be."""
    held: str
    """What the resource holds in the end, in short."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    name: str
    resource: str
    store: str
    summary: str
    proved: bool
    arms: Sequence[ArmShown]
    rows: Sequence[Row]
    program: Path | None = None
    """The file to copy, for a use."""

    @property
    def is_use(self) -> bool:
        return self.program is not None


def token_names(results: Sequence[Result | UseResult]) -> TokenNames:
    tokens: set[int] = set()
    for result in results:
        if isinstance(result, Result):
            tokens.update(*(timeline.tokens_of(outcome.events) for outcome in result.outcomes))
        else:
            tokens.update(*(picture.tokens_of(outcome.events) for outcome in result.outcomes))
    return TokenNames(tokens)


def exhibit(result: Result | UseResult, names: TokenNames) -> Exhibit:
    return _scenario(result, names) if isinstance(result, Result) else _use(result, names)


def _scenario(result: Result, names: TokenNames) -> Exhibit:
    timelines = timeline.draw_up([outcome.events for outcome in result.outcomes], names)
    arms = [
        ArmShown(
            outcome.trial.arm,
            result.run.scenario.arm_in_words(outcome.trial.arm),
            outcome_in_words(outcome),
            outcome.verdict.stale_accepted == 0 and not outcome.verdict.lost,
            drawn,
            outcome.verdict.stale_writes,
            outcome.verdict.stale_accepted,
            len(outcome.verdict.lost),
            f"{' '.join(outcome.verdict.holding.updates)}, last by {outcome.verdict.holding.owner or 'nobody'}",
        )
        for outcome, drawn in zip(result.outcomes, timelines, strict=True)
    ]
    scenario = result.run.scenario
    run = result.run
    return Exhibit(
        scenario.name, run.resource, run.store.name, _summary(result), result.proved, arms, list(rows(result))
    )


def _summary(result: Result) -> str:
    summary = result.run.scenario.summary
    if result.run.scenario.failpoint is not None and result.run.fenced.settings.kind == "upstream":
        return f"{summary}. What it had in its hands it then gives up by itself (503, not written): its time is over"
    return summary


def _use(result: UseResult, names: TokenNames) -> Exhibit:
    timelines = picture.draw_up([outcome.events for outcome in result.outcomes], names)
    arms = [
        ArmShown(
            outcome.place.arm,
            BY_CHECK[outcome.place.arm],
            uses_wording.outcome_in_words(outcome),
            outcome.verdict.stale_accepted == 0 and not outcome.verdict.wrong,
            drawn,
            outcome.verdict.stale_writes,
            outcome.verdict.stale_accepted,
            len(outcome.verdict.wrong),
            uses_wording.in_the_end(outcome),
        )
        for outcome, drawn in zip(result.outcomes, timelines, strict=True)
    ]
    use = result.run.use
    return Exhibit(
        use.name, use.resource, "", use.summary, result.proved, arms, list(uses_wording.rows(result)), use.program
    )


def concluded(results: Sequence[Result | UseResult], not_run: Sequence[NotRun] = ()) -> str:
    """One plain sentence, or two."""
    broken = [each.what for each in not_run if each.bad]
    failed = [_title(result) for result in results if not result.proved]
    if broken or failed:
        names = ", ".join([*failed, *broken])
        return f"Not proved: {names}. See the verdict for what was accepted, lost, or never happened."
    scenarios = [result for result in results if isinstance(result, Result)]
    uses = [result for result in results if isinstance(result, UseResult)]
    said = [*([conclusion(scenarios)] if scenarios else []), *([uses_wording.conclusion(uses)] if uses else [])]
    return "Proved: " + " ".join([said[0], *(each[:1].upper() + each[1:] for each in said[1:])])


def _title(result: Result | UseResult) -> str:
    if isinstance(result, Result):
        return f"{result.run.scenario.name} over {result.run.resource}, locks in {result.run.store.name}"
    return result.run.use.name
