"""`python -m bench`: starts the arms, runs them in turns, and prints what came out.

In turns (A B A B …), because a disk and a machine drift: what is compared must have met the same weather.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench import binaries, object_writes, own_transactions, stores, summary
from bench.arm import Arm, Sample
from bench.embedded import EmbeddedLocks
from bench.etcd import EtcdLocks
from bench.library import Library
from bench.object_writes import ObjectWrites
from bench.own_transactions import OwnTransactions
from bench.row_writes import RowWrites
from bench.server import NotServing
from bench.summary import Goal

OBJECTS = [
    f"{label}-{size}-{clients}" for label in ("objects", "azure") for size in ("16k", "256k") for clients in (1, 8)
]
OWN = [f"{kind}-{database}-1" for database in ("postgres", "sqlite") for kind in own_transactions.LABELS]
OWN.append("async-session-postgres-1")
GOALS = (
    Goal("fencegate-32", "fencegate-1", at_least=3.0),
    Goal("fencegate-32", "etcd-32", at_least=1.1),
    Goal("fencegate-hand-over-500", "fencegate-hand-over-5", at_most=3.0),
    Goal("fencegate-hand-over-5", "etcd-hand-over-5"),
    Goal("fencegate-redis-32", "redis-py-32", at_least=2.0),
    Goal("fencegate-redis-1", "redis-py-1", at_least=0.9),
    Goal("fencegate-redis-sync-1", "redis-py-sync-1"),
    Goal("fencegate-redis-sync-1", "python-redis-lock-1"),
    Goal("fencegate-redis-hand-over-5", "python-redis-lock-hand-over-5", at_most=1.0),
    Goal("fencegate-redis-sync-hand-over-5", "python-redis-lock-hand-over-5", at_most=1.0),
    Goal("fencegate-etcd-32", "etcd-python-32", at_least=2.0),
    Goal("fencegate-etcd-32", "etcd-32", at_least=1.0),
    Goal("fencegate-zookeeper-32", "kazoo-32", at_least=1.5),
    Goal("fencegate-postgres-32", "advisory-32"),
    Goal("gateway-rows-postgres-32", "plain-rows-postgres-32", at_least=2.0),
    Goal("gateway-rows-sqlite-32", "plain-rows-sqlite-32", at_least=2.0),
    *(Goal(f"fenced-{each}", f"plain-{each}", at_least=0.95) for each in OWN),
    *(Goal(f"fenced-{each}", f"plain-{each}", at_least=0.9) for each in OBJECTS),
    # Told, not aimed at: what a condition costs on this server, and what the fence adds to that.
    *(Goal(f"conditional-{each}", f"plain-{each}") for each in OBJECTS),
    *(Goal(f"fenced-{each}", f"conditional-{each}") for each in OBJECTS),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One arm under so many clients: each with a lock of its own, or all of them after one, to see it handed over."""

    arm: Arm
    clients: int
    hand_over: bool = False

    @property
    def name(self) -> str:
        return f"{self.arm.name}{'-hand-over' if self.hand_over else ''}-{self.clients}"

    def run(self, seconds: float) -> Sample:
        return (self.arm.hand_over if self.hand_over else self.arm.run)(self.clients, seconds)


def measurements() -> list[Measurement]:
    etcd, fencegate = EtcdLocks(), EmbeddedLocks()
    arms: list[Arm] = [etcd, fencegate]
    cycles = [Measurement(arm, clients) for clients in (1, 32) for arm in arms]
    hand_overs: list[tuple[Arm, int]] = [(etcd, 5), (fencegate, 5), (fencegate, 500)]
    cycles += [Measurement(stores.ARMS[name], clients) for name, clients in stores.CYCLES]
    hand_overs += [(stores.ARMS[name], waiters) for name, waiters in stores.HAND_OVERS]
    rows = [
        RowWrites("plain-rows-postgres", stores.POSTGRES, fenced=False),
        RowWrites("gateway-rows-postgres", stores.POSTGRES, fenced=True),
        RowWrites("plain-rows-sqlite", None, fenced=False),
        RowWrites("gateway-rows-sqlite", None, fenced=True),
    ]
    cycles += [Measurement(arm, 32) for arm in rows]
    own = [
        *own_transactions.pairs("postgres", stores.POSTGRES),
        *own_transactions.pair("postgres", stores.POSTGRES, label="async-session", is_async=True),
        *own_transactions.pairs("sqlite", None),
    ]
    cycles += [Measurement(arm, 1) for arm in own]
    objects = object_writes.arms()
    cycles += [Measurement(arm, clients) for clients in (1, 8) for arm in objects]
    return cycles + [Measurement(arm, waiters, hand_over=True) for arm, waiters in hand_overs]


def present(chosen: Sequence[Measurement]) -> list[Measurement]:
    """Those whose server can be had here; of the others it is told why not."""
    reasons = {
        one.arm.name: one.arm.missing
        for one in chosen
        if isinstance(one.arm, Library | RowWrites | ObjectWrites | OwnTransactions)
    }
    for name, reason in reasons.items():
        if reason is not None:
            print(f"{name} is left out: {reason}", file=sys.stderr)
    return [one for one in chosen if reasons.get(one.arm.name) is None]


def measure(chosen: Sequence[Measurement], rounds: int, seconds: float) -> dict[str, list[Sample]]:
    """Start every arm once, then run the measurements in turns; whatever happens, stop what was started."""
    samples: dict[str, list[Sample]] = {one.name: [] for one in chosen}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        folder = stack.enter_context(_data_folder())
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = progress.add_task("", total=rounds * len(chosen))
        for name, arm in {one.arm.name: one.arm for one in chosen}.items():
            progress.update(task, description=f"starting {name}")
            (Path(folder) / name).mkdir()
            stack.callback(arm.stop)
            arm.start(Path(folder) / name)
        for turn in range(1, rounds + 1):
            for one in chosen:
                progress.update(task, description=f"round {turn} of {rounds}: {one.name}")
                samples[one.name].append(one.run(seconds))
                progress.advance(task)
    return samples


def _data_folder() -> "tempfile.TemporaryDirectory[str]":
    """Beside the code, not in the system's temporary folder: that is often memory, where durable costs nothing."""
    build = Path(__file__).parents[1] / "build"
    build.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=f"bench-{os.getpid()}-", dir=build)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [one.name for one in measurements()]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long a run counts, per arm and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", metavar="ARM", choices=names, default=names, help=", ".join(names))
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or not 0.1 <= arguments.seconds <= 600:
        parser.error("--rounds must be at least 1, and --seconds between 0.1 and 600")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that the arms are stopped
    chosen = present([one for one in measurements() if one.name in arguments.only])
    try:
        if any(
            not one.hand_over and not isinstance(one.arm, Library | ObjectWrites | OwnTransactions) for one in chosen
        ):
            binaries.wrk()
        samples = measure(chosen, arguments.rounds, arguments.seconds)
    except binaries.Missing as missing:
        print(f"{missing}. Or choose other arms with --only.", file=sys.stderr)
        return 1
    except NotServing as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    console = Console()
    if summary.of_cycles(samples):
        console.print(summary.cycles_table(samples))
    if summary.of_handovers(samples):
        console.print(summary.handovers_table(samples))
    if summary.of_writes(samples):
        console.print(summary.writes_table(samples))
    if summary.measurable(samples, GOALS):
        console.print(summary.ratios_table(samples, GOALS))
    for name, error in summary.errors_of(samples).items():
        console.print(f"[red]{name} had errors, so this is not a result.[/] The first: ", end="")
        console.print(error, markup=False)
    outcome = summary.as_json(samples, GOALS) | {"rounds": arguments.rounds, "seconds": arguments.seconds}
    if arguments.json:
        print(json.dumps(outcome))
    return 0 if outcome["valid"] else 1


if __name__ == "__main__":
    sys.exit(main())
