"""The line to a writer process: started, spoken to, listened to from several event loops, and hung up."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import msgspec

from fencegate.clock import Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate_lockservice.stores.sqlite_writer import Hello, Inbox, framed, receive

END_WITHIN_S = 5.0  # a writer that takes longer to end is stuck, and is killed

log = logging.getLogger("fencegate.store.sqlite")

_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class Line:
    """A writer process, and the line to it. Never waits for the writer in the thread of an event loop."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._wire, self._process, self.revision = _start(path, clock)
        self._inbox = Inbox()
        self._watched: dict[asyncio.AbstractEventLoop, socket.socket] = {}
        self._unsent = bytearray()
        self._sender: threading.Thread | None = None
        self._mutex = threading.Lock()

    @property
    def dead(self) -> bool:
        return self._wire.fileno() < 0

    def watch(self, loop: asyncio.AbstractEventLoop, read: Callable[["Line"], None]) -> None:
        """Have `read` called in this loop when something comes."""
        if loop not in self._watched:
            for ended in [other for other in self._watched if other.is_closed()]:
                self._watched.pop(ended).close()
            self._watched[loop] = _kept(self._wire.dup())  # its own, so that nobody else closes it under it
            loop.add_reader(self._watched[loop].fileno(), read, self)

    def send(self, message: list[msgspec.Raw]) -> None:
        """What the line doesn't take at once is left to a thread: the writer may be slow, or stopped."""
        data = framed(message)
        with self._mutex:
            if not self._unsent:
                try:
                    data = data[self._wire.send(data, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    pass
                except OSError:
                    log.debug("the writer is gone")  # reading shows it too, and tells all who wait
                    return
                if not data:
                    return
                self._sender = threading.Thread(target=self._send_rest, name="fencegate-sqlite", daemon=True)
                self._sender.start()
            self._unsent += data

    def _send_rest(self) -> None:
        with contextlib.suppress(OSError), _kept(self._wire.dup()) as wire:
            while True:
                with self._mutex:
                    part = bytes(self._unsent[: 1 << 20])
                wire.sendall(part)
                with self._mutex:
                    del self._unsent[: len(part)]
                    if not self._unsent:
                        return

    def receive(self) -> list[bytes]:
        """The messages that have come; when there will be no more, the line is dead."""
        try:
            alive = self._inbox.fill(self._wire)
        except BlockingIOError:  # another loop was faster
            return []
        messages = []
        while (message := self._inbox.take()) is not None:
            messages.append(message)
        if not alive:
            self._abandon()
        return messages

    def hang_up(self) -> None:
        """Say that no more will come, and wait for the writer to finish."""
        within_s = END_WITHIN_S
        if self._sender is not None:
            self._sender.join(within_s)
            within_s = 0 if self._sender.is_alive() else within_s
        with contextlib.suppress(OSError):
            self._wire.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            log.error("the writer does not end, and is killed")
            self._process.kill()
            self._process.wait()

    def _abandon(self) -> None:
        self._wire.close()
        for loop, wire in self._watched.items():
            try:
                loop.call_soon_threadsafe(_unwatch, loop, wire)
            except RuntimeError:  # the loop was closed
                wire.close()


def _unwatch(loop: asyncio.AbstractEventLoop, wire: socket.socket) -> None:
    loop.remove_reader(wire.fileno())
    wire.close()


def _start(path: Path, clock: Clock) -> tuple[socket.socket, "subprocess.Popen[bytes]", int]:
    """Start a writer; gives the line to it, and where the log stands."""
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as undo:
        undo.enter_context(_kept(ours))
        with _kept(theirs):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            process = _spawn(theirs, path, clock)
        hello = receive(ours)
        said = _decode_hello(hello) if hello is not None else Hello(trouble=f"the writer of {path} did not start")
        if said.trouble is not None:
            process.wait()
            raise UnsafeConfiguration(said.trouble)
        undo.pop_all()
    return ours, process, said.revision


def _spawn(theirs: socket.socket, path: Path, clock: Clock) -> "subprocess.Popen[bytes]":
    offset_us = clock.now_us() - clock.monotonic_us()
    module = "fencegate_lockservice.stores.sqlite_writer"
    # -P: the folder that we were started in is not a place to import from
    command = [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(path), str(offset_us)]
    nothing = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=nothing, stdout=nothing)  # noqa: S603 - ourselves
    except OSError as error:
        raise UnsafeConfiguration(f"the writer of {path} can't be started: {error}") from None


_wires: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def _kept(wire: socket.socket) -> socket.socket:
    _wires.add(wire)
    return wire


def _after_fork_in_child() -> None:
    """A child that kept the line would take its parent's answers, and keep the writer alive when its parent is not."""
    for wire in list(_wires):
        wire.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
