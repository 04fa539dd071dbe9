"""One ASGI app: calls and health straight to their routes, and a FastAPI app for the documentation."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import FencegateError, UnsafeConfiguration
from fencegate.gateway import Gateway
from fencegate.gateway.resources import RowsSettings
from fencegate.serve.later import Later
from fencegate.serve.page import page
from fencegate.settings import Settings
from fencegate.web.asgi import App, Handler, Headers, Receive, Reply, Request, Scope, Send, ThinApp
from fencegate.web.json import dumps
from fencegate_lockservice import openapi as lock_openapi
from fencegate_lockservice.history_http import HistoryRoutes
from fencegate_lockservice.history_http import components as history_components
from fencegate_lockservice.history_http import paths as history_paths
from fencegate_lockservice.http import LockRoutes
from fencegate_lockservice.opening import LockService, open_service
from fencegate_lockservice.sse import WatchRoutes
from fencegate_lockservice.sse import openapi_path as watch_openapi_path


class Application:
    """The parts that a role asks for, opened and closed together."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        self._settings = settings
        self._clock = clock
        self._service: LockService | None = None
        self._locks: LockRoutes | None = None
        self._watch: WatchRoutes | None = None
        self._history: HistoryRoutes | None = None
        self._gateway: Gateway | None = None
        self._stopping = False
        self.failure: FencegateError | None = None
        """Why it can't go on; `on_failure` is called when that happens."""
        self.on_failure: Callable[[], None] | None = None
        self._thin: App = ThinApp(self._route, Later(self._documented))
        self._health: dict[bytes, Handler] = {b"/": self._page, b"/livez": _livez, b"/readyz": self._readyz}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._thin(scope, receive, send)

    def _route(self, method: str, path: bytes) -> Handler | None:
        if self._locks is not None and (handler := self._locks.route(method, path)) is not None:
            return handler
        if self._watch is not None and (handler := self._watch.route(method, path)) is not None:
            return handler
        if self._history is not None and (handler := self._history.route(method, path)) is not None:
            return handler
        if self._gateway is not None and (handler := self._gateway.route(method, path)) is not None:
            return handler
        return self._health.get(path) if method in ("GET", "HEAD") else None

    def hot(self, path: bytes, content: bytes) -> Awaitable[Reply] | None:
        """The short way to the hottest calls; None when it is not for this one."""
        return self._locks.hot(path, content) if self._locks is not None else None

    def hot_write(self, method: str, path: bytes, headers: Headers, body: bytes) -> Awaitable[Reply] | None:
        """The same for a row that is written."""
        return self._gateway.hot(method, path, headers, body) if self._gateway is not None else None

    # --- life ---

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open what the role needs; close it in the opposite order."""
        async with AsyncExitStack() as stack:
            if self._settings.role != "gateway":
                service = await open_service(self._settings.store, self._settings.locks, self._clock, self._displaced)
                stack.push_async_callback(service.close)
                service.write_history()
                self._service = service
                self._locks = LockRoutes(service)
                self._watch = WatchRoutes(service, self._clock)
                self._history = HistoryRoutes(service)
            if self._settings.role != "lockservice":
                _make(self._settings.folder)
                gateway = Gateway(self._settings.resources, self._clock)
                await gateway.open()
                stack.push_async_callback(gateway.close)
                self._gateway = gateway
            yield

    def _displaced(self, why: str) -> None:
        """Others may serve our locks from elsewhere by now: say so, and stop."""
        self.failure = UnsafeConfiguration(f"store: {why}; start it again with the new routes")
        if self.on_failure is not None:
            self.on_failure()

    async def stop_waiting(self) -> None:
        """Say that we are going: unready, every stream ended, and every waiter sent away."""
        self._stopping = True
        if self._watch is not None:
            self._watch.stop()
        if self._service is not None:
            await self._service.stop_waiting()

    # --- what is not hot ---

    def _documented(self) -> App:
        from fencegate.serve.documented import documented  # a third of the time that it takes to start

        return documented(self._whole)

    def _whole(self, document: dict[str, Any]) -> dict[str, Any]:
        """The documentation of the health calls, and of the calls that don't go through FastAPI."""
        if self._locks is not None:
            paths = {**lock_openapi.paths(), "/v1/watch": watch_openapi_path(), **history_paths()}
            document["paths"] = {**paths, **document["paths"]}
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update({**lock_openapi.components(), **history_components()})
        if self._gateway is not None:
            document["paths"] = {**document["paths"], **self._gateway.openapi_paths()}
        return document

    async def _page(self, _: Request) -> Reply:
        rows = self._settings.resources.get("rows") if self._gateway is not None else None
        documents = (
            isinstance(rows, RowsSettings) and rows.documents and rows.guard_rule.lock_key(("cart",)) == "rows:cart"
        )
        text = page(locks=self._locks is not None, resources=self._gateway is not None, documents=documents)
        return Reply(200, text.encode(), content_type=b"text/html; charset=utf-8")

    async def _readyz(self, _: Request) -> Reply:
        if self._stopping:
            return Reply(503, dumps({"status": "unready", "detail": "this server is stopping"}))
        down = await self._service.unavailable() if self._service is not None else {}
        if not down:
            return Reply(200, dumps({"status": "ready"}))
        if len(down) == len(self._settings.store.stores):
            return Reply(503, dumps({"status": "unready", "detail": "; ".join(down.values())}))
        # Without us nobody could use the locks in the stores that do answer.
        detail = "; ".join(f"{name}: {why}" for name, why in down.items())
        return Reply(200, dumps({"status": "ready", "detail": detail}))


async def _livez(_: Request) -> Reply:
    return Reply(200, dumps({"status": "ok"}))


def _make(folder: Path | None) -> None:
    """The lock store makes it too, but may be elsewhere."""
    if folder is not None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UnsafeConfiguration(f"data: {folder} can't be made ({error.strerror}); give another --data") from None
