"""Real ZooKeeper servers from Debian's jars: one that stands alone, and an ensemble of three."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from tests.servers import kept_address

JARS = Path("/usr/share/java")
NEEDED = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "netty-all", "snappy-java", "metrics-core")
SMALL = ("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")
AS_USUAL = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""As a team would run it: what is small starts sooner, and serves more slowly."""
START_WITHIN_S = 90.0


def missing() -> str | None:
    """Why there is no server, for `pytest.skip`."""
    if shutil.which("java") is None or any(not _jar(name).exists() for name in NEEDED):
        return "no ZooKeeper: apt-get install zookeeper libslf4j-java (java, and the jars in /usr/share/java)"
    return None


def _jar(name: str) -> Path:
    return JARS / f"{name}.jar"


class ZooKeeperServer:
    """One server process. It keeps its port and its folder, so that it can be killed and started again."""

    def __init__(self, folder: Path, *options: str, java: Sequence[str] = SMALL) -> None:
        self._folder = folder
        self._java = java
        self.options = options
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = self._keep_port()

    def _keep_port(self) -> int:
        return int(self._stack.enter_context(kept_address()).rpartition(":")[2])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}"

    @property
    def addresses(self) -> list[str]:
        return [self.address]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        return [self.pid]

    def launch(self) -> None:
        """Start the process, and don't wait for it."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        settings = [
            "tickTime=500",
            f"dataDir={data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,mntr",
            *self.options,
        ]
        config = self._folder / "zoo.cfg"
        config.write_text("\n".join(settings) + "\n")
        classes = ":".join(str(_jar(name)) for name in NEEDED)
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        with open(self._folder / "server.log", "ab") as log:
            command = [
                "java",
                *self._java,
                quiet,
                "-Dzookeeper.jmx.log4j.disable=true",
                "-cp",
                classes,
                main,
                str(config),
            ]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def start(self) -> Self:
        self.launch()
        self.wait()
        return self

    def wait(self) -> None:
        """Return when it serves."""
        end = time.monotonic() + START_WITHIN_S
        while not self.mode():
            assert self._process is not None
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < end, "the server does not serve"
            time.sleep(0.05)

    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while it is none of these."""
        for line in self.ask("srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def ask(self, word: str) -> str:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as line:
            line.sendall(word.encode())
            answer = b""
            while part := line.recv(65536):
                answer += part
            return answer.decode()
        return ""

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP: it stands still, and its connections stay open."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def backup(self, to: Path) -> None:
        """Copy its data, as it is when it is killed; it runs on."""
        self.kill()
        shutil.copytree(self._folder / "data", to)
        self.start()

    def restore(self, backup: Path) -> None:
        """Go back to what was copied."""
        self.kill()
        shutil.rmtree(self._folder / "data")
        shutil.copytree(backup, self._folder / "data")
        self.start()

    def terminate(self) -> None:
        """Its end; the port is free for others afterwards. Nothing that it has is needed any more."""
        self.kill()
        self._stack.close()


class _Member(ZooKeeperServer):
    """A server of an ensemble: it has two more ports, for the others."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder)
        self.number = number
        self.line = f"server.{number}=127.0.0.1:{self._keep_port()}:{self._keep_port()}"
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "myid").write_text(str(number))


class Ensemble:
    """Three servers. What is done to it is done to all of them."""

    def __init__(self, folder: Path) -> None:
        self.members = [_Member(folder / str(number), number) for number in (1, 2, 3)]
        for member in self.members:
            member.options = ("initLimit=40", "syncLimit=10", *(other.line for other in self.members))

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self.members]

    @property
    def leader(self) -> ZooKeeperServer:
        return next(member for member in self.members if member.mode() == "leader")

    def start(self) -> Self:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait()
        return self

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def resume(self) -> None:
        for member in self.members:
            member.resume()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def terminate(self) -> None:
        for member in self.members:
            member.terminate()
