"""What came out: medians over the rounds, the ratios and their goals, as a table and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich import box
from rich.table import Table

from bench.arm import Sample, quantile

Samples = Mapping[str, Sequence[Sample]]
"""By measurement (`etcd-32`): one sample per round."""


@dataclass(frozen=True, slots=True)
class Goal:
    """How many times the cycles of one measurement another should do."""

    of: str
    over: str
    at_least: float

    @property
    def name(self) -> str:
        return f"{self.of} / {self.over}"


def rate(samples: Sequence[Sample]) -> float:
    return median(sample.cycles_per_s for sample in samples)


def latency_ms(samples: Sequence[Sample], call: str, share: float) -> float:
    return median(quantile(sample.latencies_us[call], share) for sample in samples) / 1000


def ratio(samples: Samples, goal: Goal) -> float:
    below = rate(samples[goal.over])
    return rate(samples[goal.of]) / below if below else 0.0


def spread(samples: Samples, goal: Goal) -> tuple[float, float]:
    """The lowest and the highest ratio of a single round: how much to trust the median."""
    pairs = zip(samples[goal.of], samples[goal.over], strict=True)
    ratios = [over.cycles_per_s and of.cycles_per_s / over.cycles_per_s for of, over in pairs]
    return min(ratios), max(ratios)


def measurable(samples: Samples, goals: Sequence[Goal]) -> list[Goal]:
    return [goal for goal in goals if goal.of in samples and goal.over in samples]


def cycles_table(samples: Samples) -> Table:
    table = Table(
        title="Durable acquire + release over REST: medians of the rounds, latencies in ms",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("\narm-clients", no_wrap=True)
    for column in ("\ncycles/s", "acquire\np50", "\np99", "release\np50", "\np99", "\nerrors", "load\nCPU"):
        table.add_column(column, justify="right")
    for name, taken in samples.items():
        errors = sum(sample.errors for sample in taken)
        table.add_row(
            name,
            f"[bold]{rate(taken):,.0f}[/]",
            *(f"{latency_ms(taken, call, share):.2f}" for call in ("acquire", "release") for share in (0.5, 0.99)),
            f"[red]{errors:,}[/]" if errors else "0",
            f"{median(sample.load_cpu for sample in taken):.0%}",
        )
    return table


def ratios_table(samples: Samples, goals: Sequence[Goal]) -> Table:
    table = Table(title="Ratios", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("ratio")
    for column in ("value", "rounds", "goal", ""):
        table.add_column(column, justify="right")
    for goal in measurable(samples, goals):
        value, (low, high) = ratio(samples, goal), spread(samples, goal)
        verdict = "[green]met[/]" if value >= goal.at_least else "[red]missed[/]"
        row = (f"[bold]{value:.2f}[/]", f"{low:.2f} … {high:.2f}", f"≥ {goal.at_least:.1f}", verdict)
        table.add_row(goal.name, *row)
    return table


def errors_of(samples: Samples) -> dict[str, str]:
    """By measurement that had any: the first one."""
    return {
        name: next(sample.first_error for sample in taken if sample.errors)
        for name, taken in samples.items()
        if any(sample.errors for sample in taken)
    }


def as_json(samples: Samples, goals: Sequence[Goal]) -> dict[str, Any]:
    return {
        "arms": {name: _arm_json(taken) for name, taken in samples.items()},
        "ratios": {
            goal.name: {
                "value": round(ratio(samples, goal), 3),
                "rounds": [round(end, 3) for end in spread(samples, goal)],
                "goal": goal.at_least,
                "met": ratio(samples, goal) >= goal.at_least,
            }
            for goal in measurable(samples, goals)
        },
        "valid": not errors_of(samples),
    }


def _arm_json(taken: Sequence[Sample]) -> dict[str, Any]:
    return {
        "cyclesPerSecond": round(rate(taken), 1),
        "cycles": sum(sample.cycles for sample in taken),
        "errors": sum(sample.errors for sample in taken),
        "loadCpu": round(median(sample.load_cpu for sample in taken), 3),
        **{
            f"{call}P{percent}Millis": round(latency_ms(taken, call, percent / 100), 3)
            for call in ("acquire", "release")
            for percent in (50, 99)
        },
    }
