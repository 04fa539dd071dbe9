"""What the benchmark compares: an arm is a server under a load, and a sample is what one run of it gave."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of an arm."""

    cycles: int
    cycles_per_s: float
    errors: int
    first_error: str
    latencies_us: dict[str, Counter[int]]
    """By call (`acquire`, `release`, `hand-over`): how often each latency was seen."""
    load_cpu: float
    """The share of the machine's processor time that the load itself took: near 1, it measured the load."""


class Arm(Protocol):
    """A server and the load that it is put under. Everything that it starts it also stops."""

    name: str

    def start(self, folder: Path) -> None:
        """Start the server with its data in `folder`, and return when it serves."""

    def run(self, clients: int, seconds: float) -> Sample:
        """Put it under the load of so many clients."""

    def hand_over(self, waiters: int, seconds: float) -> Sample:
        """Let so many wait for one lock, and hand it over for so long."""

    def stop(self) -> None:
        """Stop what `start` started, as far as that came; nothing to stop is fine."""


def quantile(latencies_us: Counter[int], share: float) -> float:
    """The smallest latency that at least this share of the calls did not exceed.

    >>> quantile(Counter({100: 98, 900: 2}), 0.99)
    900.0
    """
    left = share * latencies_us.total()
    for latency_us in sorted(latencies_us):
        left -= latencies_us[latency_us]
        if left <= 0:
            return float(latency_us)
    return 0.0
