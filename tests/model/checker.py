"""Runs the model of the protocol through spin: one variant of it, to its end or to the first broken property."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("fencegate.pml")
WITHIN_S = 900
DEEPEST = 10_000

_PROPERTIES = {
    "told_before": "I1",
    "told_tokens": "I1",
    "accepted_token": "I2",
    "shown_token": "I3",
    "base==value": "I4",
    "made": "I4",
    "refused": "I4",
    "told_no_lock": "I4",
}
"""The words by which a failed assertion of the model tells its property: see the list of them in the model."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker found. `broken` is the property that does not hold; empty when every order keeps all of them."""

    broken: str
    steps: int
    states: int
    exhausted: bool
    unreached: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        found = f"{self.broken} broken after {self.steps} steps" if self.broken else "kept in every order"
        return f"{found}; {self.states} states, deepest {self.steps}, {self.seconds:.2f} s"


def missing() -> str:
    """Why the model can't be checked here; empty when it can."""
    absent = [tool for tool in ("spin", "cc") if shutil.which(tool) is None]
    if not absent:
        return ""
    return f"no {' and no '.join(absent)} on PATH: `make servers`, as root, installs them (Debian: spin, gcc)"


def check(folder: Path, sizes: Mapping[str, int], mutant: str = "", *, large: bool = False) -> Verdict:
    """Build the model with these sizes, and with this bug in it, and look at every order of its steps.

    A `large` one is kept in a third of the memory, and takes twice the time.
    """
    switches = [f"-D{name}={size}" for name, size in sizes.items()] + ([f"-D{mutant}"] if mutant else [])
    _run(folder, "spin", "-a", *switches, str(MODEL))
    # A mutant is found in a moment, so most of its time would be the compiler's.
    how = ["-O0" if mutant else "-O2", *(["-DCOLLAPSE"] if large else [])]
    _run(folder, "cc", *how, "-DSAFETY", "-DNOCLAIM", "-w", "-o", "pan", "pan.c")
    return _read(_run(folder, "./pan", f"-m{DEEPEST}", f"-w{25 if large else 22}"))


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def _read(told: str) -> Verdict:
    errors = re.search(r"depth reached (\d+), errors: (\d+)", told)
    stored = re.search(r"(\d+) states, stored", told)
    if errors is None or stored is None or "max search depth too small" in told:
        raise RuntimeError(f"spin did not finish: {told[-2000:]}")
    failed = re.search(r"pan:\d+: (.+) \(at depth (\d+)\)", told)
    seconds = re.search(r"elapsed time ([0-9.]+) seconds", told)
    return Verdict(
        broken=_property(failed[1]) if failed is not None else "",
        steps=int(failed[2] if failed is not None else errors[1]),
        states=int(stored[1]),
        exhausted=errors[2] == "0" and "Search not completed" not in told,
        unreached=tuple(re.findall(r"fencegate\.pml:\d+, state \d+, \"(.*)\"", told)),
        seconds=float(seconds[1]) if seconds is not None else 0.0,
    )


def _property(assertion: str) -> str:
    for word, name in _PROPERTIES.items():
        if word in assertion:
            return name
    return assertion
