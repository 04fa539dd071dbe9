"""The arm of etcd: its own v3 lock, through its JSON gateway, on one node."""

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

from bench import binaries
from bench.arm import Sample
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
        while len(self.leases) < clients:
            self.leases.append(self.post("/v3/lease/grant", {"TTL": LEASE_S})["ID"])
        return run_cycles(self.url, [self.cycle(client) for client in range(clients)], "key", seconds)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def cycle(self, client: int) -> Cycle:
        name = base64.b64encode(f"bench:{client}".encode()).decode()
        return Cycle(
            acquire_path="/v3/lock/lock",
            acquire_body=json.dumps({"name": name, "lease": self.leases[client]}),
            release_path="/v3/lock/unlock",
            release_body='{"key": "%TOKEN%"}',
        )

    def post(self, path: str, body: dict[str, Any]) -> Any:
        with urllib.request.urlopen(self.url + path, data=json.dumps(body).encode(), timeout=10) as answer:
            return json.load(answer)
