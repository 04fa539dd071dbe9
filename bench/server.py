"""A server process of the benchmark: started with its own log, awaited, and stopped by its own process id."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from bench.signals import signals_held_back

START_S = 60.0
STOP_S = 15.0

_kept: list[socket.socket] = []
"""Bound, not listening: nobody else is given these ports while we run, and our servers may still listen there."""


class NotServing(Exception):
    """The server ended, or did not come up in time; the message holds the end of its log."""


class Server:
    """A process that serves HTTP.

    It runs in a session of its own: a Ctrl-C then reaches only the benchmark, which stops its servers in good order.
    """

    def __init__(self, command: Sequence[str], log: Path, ready_url: str) -> None:
        self._log = log
        self._ready_url = ready_url
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with log.open("wb") as out, signals_held_back():
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=_neutral_environment(),
                    start_new_session=True,
                )
        except BaseException:
            self.stop()  # nobody has this object yet
            raise

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait_ready(self) -> None:
        process = self._process
        assert process is not None
        deadline_s = time.monotonic() + START_S
        while not _answers(self._ready_url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                tail = self._log.read_text(errors="replace")[-2000:]
                raise NotServing(f"{process.args!r} does not serve (exit {process.returncode}):\n{tail}")
            time.sleep(0.05)

    def stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; held together, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in sockets]
    if sys.platform == "linux":
        _kept.extend(sockets)
    else:  # a server could not listen there
        for sock in sockets:
            sock.close()
    return ports


def _neutral_environment() -> dict[str, str]:
    """Ours without the settings of the servers: what is measured are their defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("FENCEGATE_", "ETCD_"))}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
