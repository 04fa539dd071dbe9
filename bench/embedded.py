"""The arm of Fencegate: the lock service on its embedded SQLite store, as `fencegate serve` starts it."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

from bench.arm import Sample
from bench.handover import run_handovers
from bench.server import Server, free_ports
from bench.wrk import Cycle, run_cycles

WAIT_MS = 60_000


class EmbeddedLocks:
    """A cycle is a durable acquire and a durable release."""

    name = "fencegate"

    def __init__(self) -> None:
        self._server: Server | None = None
        self.url = ""

    def start(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        # Not the script of PATH: that may belong to another installation than the one that is measured.
        command = [sys.executable, "-c", "from fencegate.cli import main; main()", "serve"]
        command += ["--listen", f"127.0.0.1:{port}", "--data", str(folder / "data")]
        self._server = Server(command, folder / "log", f"{self.url}/readyz")
        self._server.wait_ready()

    def run(self, clients: int, seconds: float) -> Sample:
        return run_cycles(self.url, [_cycle(client) for client in range(clients)], "lockToken", seconds)

    def hand_over(self, waiters: int, seconds: float) -> Sample:
        asks = {"ttlMillis": 600_000, "waitMillis": WAIT_MS}
        seconds = min(seconds, WAIT_MS / 2000)  # those at the end of the queue must not be sent away meanwhile
        cycles = [_cycle(client, "one", **asks) for client in range(waiters + 1)]
        return run_handovers(self.url, cycles, "lockToken", lambda: self._waiting("bench:one"), seconds)

    def _waiting(self, lock_key: str) -> int:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/locks/{lock_key}", timeout=30) as answer:
                return int(json.load(answer)["waiters"])
        except urllib.error.HTTPError:  # nobody holds it
            return 0

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def _cycle(client: int, name: str = "", **asks: int) -> Cycle:
    lock_key = f"bench:{name or client}"
    return Cycle(
        acquire_path=f"/v1/locks/{lock_key}/acquire",
        acquire_body=json.dumps({"ttlMillis": 30_000, "ownerId": f"bench-{client}", **asks}),
        release_path=f"/v1/locks/{lock_key}/release",
        release_body='{"lockToken": "%TOKEN%"}',
    )
