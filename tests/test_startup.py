"""What a process imports before it does anything: thousands of them are started, and each pays for it."""

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

import fencegate
from fencegate.serve.later import Later
from fencegate.web.asgi import App, Receive, Scope, Send


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("fencegate", {"asyncio", "fencegate.client"}),
        ("fencegate.cli", {"fencegate.client", "httpx", "sqlalchemy", "fastapi"}),
        ("fencegate_demo.cli", {"sqlalchemy", "fencegate.client"}),
        ("fencegate.serve.server", {"fastapi", "sqlalchemy.orm"}),
        ("fencegate_adapters.sql", {"sqlalchemy.orm"}),
        ("fencegate_lockservice.stores.sqlite_writer", {"asyncio", "fencegate.client"}),
    ],
)
def test_no_more_is_imported_than_is_needed(module: str, unneeded: set[str]) -> None:
    source = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=True)
    assert set(done.stdout.split()) & unneeded == set()


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    for name in fencegate.__all__:
        assert getattr(fencegate, name) is not None
        assert name in dir(fencegate)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = fencegate.no_such_name  # type: ignore[attr-defined]


async def test_an_app_that_is_made_later_is_made_once_though_the_first_who_asked_went_away() -> None:
    made: list[int] = []
    begun, finish = threading.Event(), threading.Event()
    answered: list[str] = []

    def make() -> App:
        made.append(1)
        begun.set()
        assert finish.wait(30)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            answered.append(scope["path"])

        return app

    async def nothing(*_: Any) -> Any:
        return {}

    later = Later(make)
    first = asyncio.ensure_future(later({"path": "/first"}, nothing, nothing))
    assert await asyncio.to_thread(begun.wait, 30)
    second = asyncio.ensure_future(later({"path": "/second"}, nothing, nothing))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    finish.set()
    await second
    await later({"path": "/third"}, nothing, nothing)
    assert (made, answered) == ([1], ["/second", "/third"])
