"""The middleware for WSGI: Flask, Django, and whatever else speaks it."""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fencegate.core.errors import FencegateError
from fencegate.middleware.presented import BOUND, CURRENT, Presented, Terms
from fencegate.middleware.rules import Guarded, admit
from fencegate.web.problems import problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextvars import Token as Before
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_Headers = list[tuple[str, str]]


class WsgiFenceMiddleware:
    """Reads the token of each request, and answers refusals as problem documents.

    >>> app.wsgi_app = WsgiFenceMiddleware(app.wsgi_app)                      # Flask
    >>> application = WsgiFenceMiddleware(get_wsgi_application())             # Django

    The keywords are those of `FenceMiddleware`.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        rules: Iterable[Guarded] = (),
        strict: bool = True,
        issuer: bool = False,
        resource: str | None = None,
    ) -> None:
        self._app = app
        self._rules = tuple(rules)
        self._terms = Terms(strict, issuer, resource)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        presented = Presented(str(environ["REQUEST_METHOD"]), _path(environ), _headers(environ), self._terms)
        try:
            admit(self._rules, presented)
        except FencegateError as error:
            return _refuse(presented, error, environ, start_response)
        environ[BOUND] = presented.fence
        before = CURRENT.set(presented)
        answer = _Answer(presented)
        try:
            answer.take(self._app(environ, answer.start_response))
        except Exception as error:
            answer.close(before)
            refusal = presented.of_exception(error)
            if refusal is None:
                raise
            return _refuse(presented, refusal, environ, start_response)
        instead = presented.instead_of(answer.status_code, str(environ.get("PATH_INFO", ""))[:200])
        if instead is not None:
            answer.close(before)
            return _refuse(presented, instead, environ, start_response)
        start_response(answer.status, [*answer.headers, *_highest(presented, None)])
        answer.is_on_its_way = True
        return _Body(answer, before)


class _Answer:
    """The application's answer, held back until its status is known: it may come with the first part of the body."""

    def __init__(self, presented: Presented) -> None:
        self._presented = presented
        self._body: Iterable[bytes] = ()
        self._rest: Iterator[bytes] = iter(())
        self._first: list[bytes] = []
        self.status = ""
        self.headers: _Headers = []
        self.is_on_its_way = False

    @property
    def status_code(self) -> int:
        return int(self.status.split(" ", 1)[0])

    def start_response(self, status: str, headers: _Headers, exc_info: Any = None, /) -> Any:
        if self.is_on_its_way and exc_info is not None:  # as PEP 3333 has it: too late for another status
            raise exc_info[1].with_traceback(exc_info[2])
        self.status, self.headers = status, list(headers)
        return self._first.append

    def take(self, body: Iterable[bytes]) -> None:
        self._body, self._rest = body, iter(body)
        while not self.status:
            part = next(self._rest, None)
            if part is None:
                raise RuntimeError("the application never called start_response")
            self._first.append(part)

    def parts(self) -> Iterator[bytes]:
        yield from self._first
        yield from self._rest

    def close(self, before: Before[Presented | None]) -> None:
        try:
            if (close := getattr(self._body, "close", None)) is not None:
                close()
        finally:
            with suppress(ValueError):  # closed in another context than the one that it was called in
                CURRENT.reset(before)
            if self._presented.fence is not None:
                self._presented.fence.end()


class _Body:
    """The rest of the answer. The request is over when the server closes it."""

    def __init__(self, answer: _Answer, before: Before[Presented | None]) -> None:
        self._answer = answer
        self._before = before

    def __iter__(self) -> Iterator[bytes]:
        return self._answer.parts()

    def close(self) -> None:
        self._answer.close(self._before)


def _refuse(
    presented: Presented, error: FencegateError, environ: WSGIEnvironment, start_response: StartResponse
) -> list[bytes]:
    status, body, extra = problem(error)
    headers: _Headers = [(name.decode().title(), value.decode()) for name, value in extra]
    headers += [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        *_highest(presented, error),
    ]
    start_response(f"{status} {HTTPStatus(status).phrase}", headers)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def _highest(presented: Presented, error: FencegateError | None) -> _Headers:
    highest = presented.highest(error)
    return [] if highest is None else [("Fencing-Token-Highest", highest)]


def _path(environ: WSGIEnvironment) -> str:
    """PEP 3333: bytes that are dressed up as Latin-1. What is no UTF-8 gets a form that no lock key may have."""
    return str(environ.get("PATH_INFO") or "/").encode("latin-1").decode("utf-8", "surrogateescape")


def _headers(environ: WSGIEnvironment) -> dict[str, list[str]]:
    # Servers join a header that comes twice by commas. A token has none; a lock key may, and is compared whole.
    token = environ.get("HTTP_FENCING_TOKEN")
    tokens = [] if token is None else [part.strip(" \t") for part in token.split(",")] if "," in token else [token]
    return {
        "fencing-token": tokens,
        "fencing-lock": [environ["HTTP_FENCING_LOCK"]] if "HTTP_FENCING_LOCK" in environ else [],
        "connection": [environ.get("HTTP_CONNECTION", "")],
    }
