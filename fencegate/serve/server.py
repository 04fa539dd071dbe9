"""The process around the app: its socket, its signals, and an end without loose ends."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import uvicorn

from fencegate import failpoint
from fencegate.core.errors import UnsafeConfiguration
from fencegate.env import setting
from fencegate.serve.app import Application
from fencegate.serve.protocol import ShortWayProtocol
from fencegate.settings import Settings

DRAIN_S = 6
STOP_WITHIN_S = 9.5
"""From the signal to the end of the process; 10 s are promised."""

log = logging.getLogger("fencegate.serve")


class _Server(uvicorn.Server):
    """uvicorn, with our signals instead of its own: it would end by the signal, and we promise exit code 0."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()  # what is here now stays: don't look at it at every collection
            self._announce()


def serve(settings: Settings, say: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or SIGINT. Says one line per endpoint, and `ready` when it serves."""
    spec = setting("failpoint")
    if spec is not None:
        failpoint.arm(spec)
    gc.set_threshold(20_000, 20, 50)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(settings, _bind(settings), say))


async def _serve(settings: Settings, sock: socket.socket, say: Callable[[str], None]) -> None:
    app = Application(settings)
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(ShortWayProtocol, hot=app.hot, hot_write=app.hot_write)),
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=DRAIN_S,
    )
    server = _Server(config, lambda: _announce(settings, sock, say))
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if not stopping:
            end_at_the_latest(STOP_WITHIN_S, lambda: 0 if app.failure is None else 1)
        stopping.append(loop.create_task(app.stop_waiting()))
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    app.on_failure = stop
    async with app.running():
        await server.serve(sockets=[sock])
    if app.failure is not None:
        raise app.failure


def end_at_the_latest(within_s: float, code: Callable[[], int]) -> None:
    """A database that stands still keeps the threads that wait for it, and they would keep this process."""

    def end() -> None:
        log.warning("something stood still for %g s and is left as it is; what it was writing may come to be", within_s)
        os._exit(code())

    timer = threading.Timer(within_s, end)
    timer.daemon = True
    timer.start()


def _announce(settings: Settings, sock: socket.socket, say: Callable[[str], None]) -> None:
    host, port = sock.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if settings.role != "gateway":
        say(f"locks      {url}/v1/locks")
    if settings.role != "lockservice":
        for name, resource in settings.resources.items():
            shadow = "  (shadow: stale writes are counted, not refused)" if resource.mode == "shadow" else ""
            say(f"{resource.kind:<10} {url}/v1/resources/{name}{shadow}")
    say(f"docs       {url}/docs")
    say("ready")


def _bind(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        raise UnsafeConfiguration(
            f"listen: {settings.host}:{settings.port} can't be had ({error.strerror}); give another --listen"
        ) from None
    sock.setblocking(False)
    return sock


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not built for every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
