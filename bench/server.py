"""A server process of the benchmark: started with its own log, awaited, and stopped by its own process id."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

START_S = 20.0
STOP_S = 15.0


class NotServing(Exception):
    """The server ended, or did not come up in time; the message holds the end of its log."""


class Server:
    """A process that serves HTTP.

    It runs in a session of its own: a Ctrl-C then reaches only the benchmark, which stops its servers in good order.
    """

    def __init__(self, command: Sequence[str], log: Path, ready_url: str) -> None:
        self._log = log
        self._ready_url = ready_url
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_neutral_environment(),
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + START_S
        while not _answers(self._ready_url):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                tail = self._log.read_text(errors="replace")[-2000:]
                raise NotServing(f"{self._process.args!r} does not serve (exit {self._process.returncode}):\n{tail}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; held together, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def _neutral_environment() -> dict[str, str]:
    """Ours without the settings of the servers: what is measured are their defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("FENCEGATE_", "ETCD_"))}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
