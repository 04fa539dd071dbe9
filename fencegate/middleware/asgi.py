"""The middleware for ASGI: FastAPI, Starlette, and whatever else speaks it."""

from collections.abc import Iterable, MutableMapping
from typing import Any

from fencegate.core.errors import FencegateError
from fencegate.middleware.presented import BOUND, CURRENT, Presented, Terms
from fencegate.middleware.rules import Guarded, admit
from fencegate.web.asgi import App, Headers, Receive, Scope, Send
from fencegate.web.problems import problem

_HEADERS = (b"fencing-token", b"fencing-lock", b"connection")
_HIGHEST = b"fencing-token-highest"


class FenceMiddleware:
    """Reads the token of each request, and answers refusals as problem documents.

    >>> app.add_middleware(FenceMiddleware, rules=[Guarded("/accounts/{id:int}", "acct:{id}")])

    Without rules, handlers name the lock themselves, by `require_fence` or the dependency for FastAPI. `strict`: a
    write behind a fence that is answered as done without `fence.enforce` becomes a 500 (else it is only logged).
    `issuer`: all tokens come from a Fencegate lock service, so that one far beyond now is refused. `resource` is the
    name for the body of a 412, the first segment of the path unless said otherwise.
    """

    def __init__(
        self,
        app: App,
        *,
        rules: Iterable[Guarded] = (),
        strict: bool = True,
        issuer: bool = False,
        resource: str | None = None,
    ) -> None:
        self._app = app
        self._rules = tuple(rules)
        self._terms = Terms(strict, issuer, resource)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        presented = Presented(scope["method"], _path(scope), _headers(scope), self._terms)
        answer = _Answer(presented, scope, send)
        try:
            admit(self._rules, presented)
        except FencegateError as error:
            await answer.refuse(error)
            return
        scope[BOUND] = presented.fence
        before = CURRENT.set(presented)
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            refusal = None if answer.has_begun else presented.of_exception(error)
            if refusal is None:
                raise
            await answer.refuse(refusal)
        finally:
            CURRENT.reset(before)
            if presented.fence is not None:
                await presented.fence.end_async()


class _Answer:
    """The handler's answer on its way out."""

    def __init__(self, presented: Presented, scope: Scope, send: Send) -> None:
        self._presented = presented
        self._scope = scope
        self._send = send
        self._is_replaced = False
        self.has_begun = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self._is_replaced:
            return
        if message["type"] == "http.response.start":
            instead = self._presented.instead_of(message["status"], _route(self._scope))
            if instead is not None:
                self._is_replaced = True
                await self.refuse(instead)
                return
            self.has_begun = True
            message = {**message, "headers": [*message.get("headers", ()), *self._highest(None)]}
        await self._send(message)

    async def refuse(self, error: FencegateError) -> None:
        status, body, headers = problem(error)
        self.has_begun = True
        headers += [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            *self._highest(error),
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"" if self._scope["method"] == "HEAD" else body})

    def _highest(self, error: FencegateError | None) -> Headers:
        highest = self._presented.highest(error)
        return [] if highest is None else [(_HIGHEST, highest.encode())]


def _path(scope: Scope) -> str:
    """The path inside the application, decoded as its handlers see it."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(root + "/") else path


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name.decode(): [] for name in _HEADERS}
    for raw_name, value in scope["headers"]:
        if (name := raw_name.lower()) in _HEADERS:
            found[name.decode()].append(value.decode("latin-1"))
    return found


def _route(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "path", None) or scope["path"])[:200]
