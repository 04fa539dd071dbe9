"""The arm of etcd: its own v3 lock, through its JSON gateway, on one node."""

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

from bench import binaries
from bench.arm import Sample
from bench.handover import run_handovers
from bench.server import Server, free_ports
from bench.wrk import Cycle, run_cycles

LEASE_S = 3600


class EtcdLocks:
    """A client has a lease of its own, granted beforehand: a cycle is `lock` and `unlock`, nothing else."""

    name = "etcd"

    def __init__(self) -> None:
        self._server: Server | None = None
        self.url = ""
        self.leases: list[str] = []

    def start(self, folder: Path) -> None:
        client_port, peer_port = free_ports(2)
        self.url, peer_url = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
        command = [binaries.etcd(), "--name=bench", f"--data-dir={folder / 'data'}", "--log-level=error"]
        command += [f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}"]
        command += [f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}"]
        command += [f"--initial-cluster=bench={peer_url}"]
        self._server = Server(command, folder / "log", f"{self.url}/health")
        self._server.wait_ready()

    def run(self, clients: int, seconds: float) -> Sample:
        self._grant_leases(clients)
        return run_cycles(self.url, [self.cycle(client) for client in range(clients)], "key", seconds)

    def hand_over(self, waiters: int, seconds: float) -> Sample:
        self._grant_leases(waiters + 1)
        cycles = [self.cycle(client, "one") for client in range(waiters + 1)]
        return run_handovers(self.url, cycles, "key", self._waiting, seconds)

    def _waiting(self) -> int:
        """Whoever holds `bench:one` has a key below it, and so has everybody who waits."""
        first, last = (base64.b64encode(text).decode() for text in (b"bench:one/", b"bench:one0"))
        found = self.post("/v3/kv/range", {"key": first, "range_end": last, "count_only": True})
        return int(found.get("count", 1)) - 1

    def _grant_leases(self, count: int) -> None:
        while len(self.leases) < count:
            self.leases.append(self.post("/v3/lease/grant", {"TTL": LEASE_S})["ID"])

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def cycle(self, client: int, name: str = "") -> Cycle:
        name = base64.b64encode(f"bench:{name or client}".encode()).decode()
        return Cycle(
            acquire_path="/v3/lock/lock",
            acquire_body=json.dumps({"name": name, "lease": self.leases[client]}),
            release_path="/v3/lock/unlock",
            release_body='{"key": "%TOKEN%"}',
        )

    def post(self, path: str, body: dict[str, Any]) -> Any:
        with urllib.request.urlopen(self.url + path, data=json.dumps(body).encode(), timeout=10) as answer:
            return json.load(answer)
