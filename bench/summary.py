"""What came out: medians over the rounds, the ratios and their goals, as a table and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any

from rich import box
from rich.table import Table

from bench.arm import Sample, quantile

Samples = Mapping[str, Sequence[Sample]]
"""By measurement (`etcd-32`): one sample per round."""


HAND_OVER = "hand-over"
WRITE = "write"


@dataclass(frozen=True, slots=True)
class Goal:
    """What one measurement should be to another: so many times its cycles at least, or its hand-over at most."""

    of: str
    over: str
    at_least: float = 0.0
    at_most: float = inf

    @property
    def name(self) -> str:
        return f"{self.of} / {self.over}"

    @property
    def limit(self) -> float | None:
        """None when the ratio is only to be told."""
        return self.at_least or (None if self.at_most == inf else self.at_most)

    @property
    def text(self) -> str:
        return "" if self.limit is None else f"{'≥' if self.at_least else '≤'} {f'{self.limit:.2f}'.removesuffix('0')}"

    def met(self, value: float) -> bool | None:
        return None if self.limit is None else self.at_least <= value <= self.at_most


def rate(samples: Sequence[Sample]) -> float:
    return median(sample.cycles_per_s for sample in samples)


def figure(samples: Sequence[Sample]) -> float:
    """What is compared: the length of a hand-over in ms, or else cycles per second."""
    return latency_ms(samples, HAND_OVER, 0.5) if HAND_OVER in samples[0].latencies_us else rate(samples)


def latency_ms(samples: Sequence[Sample], call: str, share: float) -> float:
    return median(quantile(sample.latencies_us[call], share) for sample in samples) / 1000


def ratio(samples: Samples, goal: Goal) -> float:
    below = figure(samples[goal.over])
    return figure(samples[goal.of]) / below if below else 0.0


def spread(samples: Samples, goal: Goal) -> tuple[float, float]:
    """The lowest and the highest ratio of a single round: how much to trust the median."""
    pairs = zip(samples[goal.of], samples[goal.over], strict=True)
    ratios = [ratio({goal.of: [of], goal.over: [over]}, goal) for of, over in pairs]
    return min(ratios), max(ratios)


def measurable(samples: Samples, goals: Sequence[Goal]) -> list[Goal]:
    return [goal for goal in goals if goal.of in samples and goal.over in samples]


def cycles_table(samples: Samples) -> Table:
    table = Table(
        title="Acquire + release: medians of the rounds, latencies in ms",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("\narm-clients", no_wrap=True)
    for column in ("\ncycles/s", "acquire\np50", "\np99", "release\np50", "\np99", "\nerrors", "load\nCPU"):
        table.add_column(column, justify="right")
    for name, taken in of_cycles(samples).items():
        table.add_row(
            name,
            f"[bold]{rate(taken):,.0f}[/]",
            *(f"{latency_ms(taken, call, share):.2f}" for call in ("acquire", "release") for share in (0.5, 0.99)),
            *_errors_and_load(taken),
        )
    return table


def handovers_table(samples: Samples) -> Table:
    table = Table(
        title="Hand-over: release to the next holder's return, medians of the rounds in ms",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("arm-waiters", no_wrap=True)
    for column in ("p50", "p99", "hand-overs", "errors", "load CPU"):
        table.add_column(column, justify="right")
    for name, taken in of_handovers(samples).items():
        p50, p99 = (latency_ms(taken, HAND_OVER, share) for share in (0.5, 0.99))
        count = sum(sample.cycles for sample in taken)
        table.add_row(name, f"[bold]{p50:.2f}[/]", f"{p99:.2f}", f"{count:,}", *_errors_and_load(taken))
    return table


def writes_table(samples: Samples) -> Table:
    table = Table(
        title="Writes: medians of the rounds, latencies in ms",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("arm-clients", no_wrap=True)
    for column in ("writes/s", "p50", "p99", "errors", "load CPU"):
        table.add_column(column, justify="right")
    for name, taken in of_writes(samples).items():
        p50, p99 = (latency_ms(taken, WRITE, share) for share in (0.5, 0.99))
        table.add_row(name, f"[bold]{rate(taken):,.0f}[/]", f"{p50:.2f}", f"{p99:.2f}", *_errors_and_load(taken))
    return table


def _errors_and_load(taken: Sequence[Sample]) -> tuple[str, str]:
    errors = sum(sample.errors for sample in taken)
    return f"[red]{errors:,}[/]" if errors else "0", f"{median(sample.load_cpu for sample in taken):.0%}"


def of_handovers(samples: Samples) -> Samples:
    return {name: taken for name, taken in samples.items() if HAND_OVER in taken[0].latencies_us}


def of_writes(samples: Samples) -> Samples:
    return {name: taken for name, taken in samples.items() if WRITE in taken[0].latencies_us}


def of_cycles(samples: Samples) -> Samples:
    return {name: taken for name, taken in samples.items() if "acquire" in taken[0].latencies_us}


def ratios_table(samples: Samples, goals: Sequence[Goal]) -> Table:
    table = Table(title="Ratios", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("ratio")
    for column in ("value", "rounds", "goal", ""):
        table.add_column(column, justify="right")
    for goal in measurable(samples, goals):
        value, (low, high) = ratio(samples, goal), spread(samples, goal)
        verdict = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[goal.met(value)]
        row = (f"[bold]{value:.2f}[/]", f"{low:.2f} … {high:.2f}", goal.text, verdict)
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
        "arms": {name: _arm_json(taken) for name, taken in of_cycles(samples).items()},
        "handOvers": {name: _handover_json(taken) for name, taken in of_handovers(samples).items()},
        "writes": {name: _write_json(taken) for name, taken in of_writes(samples).items()},
        "ratios": {
            goal.name: {
                "value": round(ratio(samples, goal), 3),
                "rounds": [round(end, 3) for end in spread(samples, goal)],
                "goal": goal.limit,
                "met": goal.met(ratio(samples, goal)),
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


def _write_json(taken: Sequence[Sample]) -> dict[str, Any]:
    return {
        "writesPerSecond": round(rate(taken), 1),
        "writes": sum(sample.cycles for sample in taken),
        "errors": sum(sample.errors for sample in taken),
        "loadCpu": round(median(sample.load_cpu for sample in taken), 3),
        **{f"p{percent}Millis": round(latency_ms(taken, WRITE, percent / 100), 3) for percent in (50, 99)},
    }


def _handover_json(taken: Sequence[Sample]) -> dict[str, Any]:
    return {
        "handOvers": sum(sample.cycles for sample in taken),
        "errors": sum(sample.errors for sample in taken),
        "loadCpu": round(median(sample.load_cpu for sample in taken), 3),
        **{f"p{percent}Millis": round(latency_ms(taken, HAND_OVER, percent / 100), 3) for percent in (50, 99)},
    }
