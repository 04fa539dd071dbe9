"""The FastAPI app behind the calls: their documentation, and the answer to what there is none of."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from fencegate.core.errors import FencegateError, MethodNotAllowed, NotFound
from fencegate.web.problems import problem

_DESCRIPTION = "Leases, fencing tokens, and resources that refuse stale ones."


def documented(whole: Callable[[dict[str, Any]], dict[str, Any]]) -> FastAPI:
    """`whole` adds the calls that don't go through FastAPI to its document."""
    app = FastAPI(title="Fencegate", version=version("fencegate"), description=_DESCRIPTION)
    _describe_health(app)

    @app.exception_handler(HTTPException)
    async def not_here(request: Request, error: HTTPException) -> Response:
        where = request.url.path[:200]
        if error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "GET")
            return _problem(MethodNotAllowed(f"{request.method} is not for {where!r}", allow))
        return _problem(NotFound(f"there is nothing at {where!r}; see /docs"))

    make = app.openapi
    app.openapi = lambda: whole(make())  # type: ignore[method-assign]
    return app


def _describe_health(app: FastAPI) -> None:
    """These are answered in `app.py`: a probe must not wait for FastAPI to be imported."""

    @app.get("/livez", tags=["health"])
    async def livez() -> Response:
        """Whether the process runs."""
        return Response()

    @app.get("/readyz", tags=["health"], responses={503: {"description": "Not ready: `detail` says why"}})
    async def readyz() -> Response:
        """Whether it can serve: the store answers, and it is not stopping. Of several stores one has to answer."""
        return Response()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response()


def _problem(error: FencegateError) -> Response:
    status, body, headers = problem(error)
    extra = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status, extra, "application/problem+json")
