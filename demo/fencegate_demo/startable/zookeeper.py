"""Real ZooKeeper servers from Debian's jars: one that stands alone, and an ensemble of three."""

import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fencegate_demo.startable.process import Cluster, ServerProcess

JARS = Path("/usr/share/java")
NEEDED = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "netty-all", "snappy-java", "metrics-core")
SMALL = ("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")
AS_USUAL = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""As a team would run it: what is small starts sooner, and serves more slowly."""


def missing() -> str | None:
    """Why there is no server, for `pytest.skip`."""
    if shutil.which("java") is None or any(not _jar(name).exists() for name in NEEDED):
        return "no ZooKeeper: apt-get install zookeeper libslf4j-java (java, and the jars in /usr/share/java)"
    return None


def _jar(name: str) -> Path:
    return JARS / f"{name}.jar"


class ZooKeeperServer(ServerProcess):
    def __init__(self, folder: Path, *options: str, java: Sequence[str] = SMALL) -> None:
        super().__init__(folder)
        self._java = java
        self.options = options

    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}"

    def launch(self) -> None:
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
        command = ["java", *self._java, quiet, "-Dzookeeper.jmx.log4j.disable=true", "-cp", classes, main, str(config)]
        self._spawn(command)

    def answers(self) -> bool:
        return bool(self.mode())

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


class _Member(ZooKeeperServer):
    """A server of an ensemble: it has two more ports, for the others."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder)
        ports = [self._kept_address().rpartition(":")[2] for _ in range(2)]
        self.line = f"server.{number}=127.0.0.1:{':'.join(ports)}"
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "myid").write_text(str(number))


class Ensemble(Cluster[ZooKeeperServer]):
    def __init__(self, folder: Path) -> None:
        members = [_Member(folder / str(number), number) for number in (1, 2, 3)]
        for member in members:
            member.options = ("initLimit=40", "syncLimit=10", *(other.line for other in members))
        super().__init__(members)

    @property
    def leader(self) -> ZooKeeperServer:
        return next(member for member in self.members if member.mode() == "leader")
