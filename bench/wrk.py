"""Runs wrk: so many clients, each with a lock key of its own, that acquire and release; or each with a row to write.

A client in Python would take more of the machine than the server that it measures.
"""

import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import binaries
from bench.arm import Sample
from bench.signals import signals_held_back

WARMUP_S = 0.5
STRAGGLER_S = 10
_CYCLE = Path(__file__).with_name("cycle.lua")
_WRITE = Path(__file__).with_name("write.lua")


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one client sends; `%TOKEN%` in the release stands for what the acquire answered."""

    acquire_path: str
    acquire_body: str
    release_path: str
    release_body: str

    @property
    def line(self) -> str:
        return "\t".join((self.acquire_path, self.acquire_body, self.release_path, self.release_body)) + "\n"


@dataclass(frozen=True, slots=True)
class Write:
    """What one client sends, again and again; `%N%` in the body stands for a number that rises."""

    method: str
    path: str
    body: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def line(self) -> str:
        return (
            "\t".join((self.method, self.path, self.body, *(part for header in self.headers for part in header))) + "\n"
        )


def run_cycles(url: str, cycles: Sequence[Cycle], token_field: str, seconds: float) -> Sample:
    """Let one client per cycle repeat it for so long, after a warm-up that does not count."""
    return _measured(url, _CYCLE, cycles, [token_field], seconds, ("acquire", "release"))


def run_writes(url: str, writes: Sequence[Write], seconds: float) -> Sample:
    """The same, where a cycle is one request."""
    return _measured(url, _WRITE, writes, [], seconds, ("write",))


def _measured(
    url: str, script: Path, plans: Sequence[Cycle | Write], more: list[str], seconds: float, calls: Sequence[str]
) -> Sample:
    command = [binaries.wrk(), f"-t{len(plans)}", f"-c{len(plans)}", f"-d{int(WARMUP_S + seconds) + STRAGGLER_S}"]
    with tempfile.NamedTemporaryFile("w", suffix=".plan") as plan:
        plan.writelines(each.line for each in plans)
        plan.flush()
        arguments = ["-s", str(script), url, "--", plan.name, *more, str(WARMUP_S), str(seconds)]
        cpu_s, started_s = _reaped_cpu_s(), time.monotonic()
        clients, sockets = _run([*command, *arguments], len(plans))
        elapsed_s = time.monotonic() - started_s
    load_cpu = (_reaped_cpu_s() - cpu_s) / elapsed_s / (os.cpu_count() or 1)
    return _sample(clients, sockets, len(plans), load_cpu, calls)


def _run(command: Sequence[str], expected: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The reports of the clients, and the socket errors that wrk counted."""
    clients: list[dict[str, Any]] = []
    sockets: dict[str, int] = {}
    process: subprocess.Popen[str] | None = None
    output: list[str] = []
    try:
        with signals_held_back():
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                output.append(line)
            elif "cycles" in (report := json.loads(line)):
                clients.append(report)
                if len(clients) == expected:
                    process.send_signal(signal.SIGINT)  # all are done: wrk would sleep on to its full duration
            else:
                sockets = report
    finally:
        if process is not None:
            process.kill()
            process.wait()
    if not sockets:
        raise RuntimeError(f"wrk failed: {''.join(output)[-2000:]}")
    return clients, sockets


def _sample(
    clients: list[dict[str, Any]], sockets: dict[str, int], expected: int, load_cpu: float, calls: Sequence[str]
) -> Sample:
    unfinished = expected - len(clients)
    first_errors = [client["firstError"] for client in clients if client["firstError"]]
    if unfinished:
        first_errors.append(f"{unfinished} clients never got to the end of their last cycle")
    first_errors += [f"{count} socket errors ({kind})" for kind, count in sockets.items() if count]
    return Sample(
        cycles=sum(client["cycles"] for client in clients),
        cycles_per_s=sum(client["cycles"] / (client["elapsedMicros"] / 1e6) for client in clients),
        errors=sum(client["errors"] for client in clients) + sum(sockets.values()) + unfinished,
        first_error=first_errors[0] if first_errors else "",
        latencies_us={call: _merged(client[call] for client in clients) for call in calls},
        load_cpu=load_cpu,
    )


def _merged(histograms: Any) -> Counter[int]:
    merged: Counter[int] = Counter()
    for histogram in histograms:
        merged.update({int(latency_us): count for latency_us, count in histogram.items()})
    return merged


def _reaped_cpu_s() -> float:
    """Processor time of the children that have ended: between two readings, that is wrk alone."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
