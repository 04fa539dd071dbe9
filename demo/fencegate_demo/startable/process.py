"""A real server as one process of its own: started, stopped, continued and killed by its process id."""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, Self, TypeVar

from fencegate.children import Child, begun
from fencegate.clock import SYSTEM, sleep_s
from fencegate_demo.startable.ports import kept_address

ANSWER_WITHIN_S = 90.0


class ServerProcess:
    """It keeps its port and its folder, so that it can be killed and started again. A kind of server says how it is
    begun (`launch`), and when it `answers`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._process: Child | None = None
        self.address = self._kept_address()

    def _kept_address(self) -> str:
        return self._stack.enter_context(kept_address())

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def addresses(self) -> list[str]:
        return [self.address]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Begin it, and don't wait for it."""
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / "server.log", "ab") as log:
            self._process = begun(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def wait(self) -> Self:
        """Return when it answers."""
        end = SYSTEM.monotonic_us() / 1_000_000 + ANSWER_WITHIN_S
        while not self.answers():
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            assert SYSTEM.monotonic_us() / 1_000_000 < end, f"the server does not answer: {self.log()}"
            sleep_s(0.02)
        return self

    def start(self) -> Self:
        self.launch()
        return self.wait()

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
        """The end, for good: nothing that it has is needed any more, and its ports are free for others."""
        self.kill()
        self._stack.close()


Member = TypeVar("Member", bound=ServerProcess)


class Cluster(Generic[Member]):
    """Several servers that are one store. What is done to it is done to all of them."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    @property
    def port(self) -> int:
        return self.members[0].port

    def start(self) -> Self:
        self.start_again(self.members)
        return self

    @staticmethod
    def start_again(members: Sequence[Member]) -> None:
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
