"""An arm that is a lock library in a Python process, on a server that runs beside it: ours, or what users take instead.

Each run is a process of its own (`python -m bench.inside`), so that one library does not warm the other's caches, nor
leave threads behind.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from bench.arm import Sample

PATIENCE_S = 60.0


class Process(Protocol):
    """A server that can be started once and stopped."""

    @property
    def url(self) -> str: ...

    def start(self) -> object: ...

    def terminate(self) -> object: ...


class SharedServer:
    """One server for several arms: it starts with the first of them and stops with the last."""

    def __init__(self, make: Callable[[Path], Process], missing: Callable[[], str | None]) -> None:
        self._make = make
        self.missing = missing
        self._process: Process | None = None
        self._users = 0

    @property
    def url(self) -> str:
        assert self._process is not None
        return self._process.url

    def start(self, folder: Path) -> None:
        self._users += 1
        if self._process is None:
            self._process = self._make(folder)
            self._process.start()

    def stop(self) -> None:
        self._users -= 1
        if self._users <= 0 and self._process is not None:
            self._process.terminate()
            self._process = None


class Library:
    """`kind` names the way to lock, in `bench.inside`."""

    def __init__(self, name: str, kind: str, server: SharedServer) -> None:
        self.name = name
        self._kind = kind
        self._server = server
        self._started = False

    @property
    def missing(self) -> str | None:
        return self._server.missing()

    def start(self, folder: Path) -> None:
        self._server.start(folder)
        self._started = True

    def stop(self) -> None:
        if self._started:
            self._server.stop()
            self._started = False

    def run(self, clients: int, seconds: float) -> Sample:
        return self._inside("cycles", clients, seconds)

    def hand_over(self, waiters: int, seconds: float) -> Sample:
        return self._inside("hand-over", waiters + 1, seconds)

    def _inside(self, what: str, clients: int, seconds: float) -> Sample:
        command = [sys.executable, "-m", "bench.inside", self._kind, self._server.url, what, str(clients), str(seconds)]
        root = Path(__file__).parents[1]
        # Loopback is asked directly, whatever the machine says of proxies.
        environment = os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        limit_s = seconds + PATIENCE_S
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
        if done.returncode != 0:
            return Sample(0, 0.0, 1, (done.stderr or done.stdout).strip()[-500:], _nothing(what), 0.0)
        return _sample(json.loads(done.stdout.splitlines()[-1]))


def _nothing(what: str) -> dict[str, Counter[int]]:
    calls = ("acquire", "release") if what == "cycles" else ("hand-over",)
    return {call: Counter() for call in calls}


def _sample(told: dict[str, Any]) -> Sample:
    latencies = {
        call: Counter({int(us): number for us, number in counts.items()}) for call, counts in told["latencies"].items()
    }
    return Sample(told["cycles"], told["rate"], told["errors"], told["firstError"], latencies, told["cpu"])
