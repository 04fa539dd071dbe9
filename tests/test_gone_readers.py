"""Whoever has hung up is sent nothing more: the rest of a large object is not fetched for nobody."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fencegate.clock import SYSTEM
from fencegate.gateway import Gateway
from fencegate.web.asgi import ABORT, ThinApp
from tests.gateway_server import app, settings

TAKEN = 2
BODY = b"x" * 1_000_000


@pytest.fixture
async def thin(tmp_path: Path) -> AsyncIterator[ThinApp]:
    gateway = Gateway({"objects": settings(tmp_path)["objects"]}, SYSTEM)
    await gateway.open()
    yield app(gateway)
    await gateway.close()


async def asked(thin: ThinApp, method: str, body: bytes = b"", taken: int | None = None) -> list[bytes]:
    """The parts of the answer that were sent; the caller hangs up when it has `taken` so many."""
    parts: list[bytes] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        if message.get("body"):
            parts.append(message["body"])

    about: dict[str, Any] = {
        "method": method,
        "raw_path": b"/v1/resources/objects/k",
        "headers": [(b"fencing-token", b"7")],
    }
    gone = {ABORT: {"cut": lambda: None, "gone": lambda: len(parts) == taken}}
    await thin({"type": "http", "path": "", "extensions": gone, **about}, receive, send)
    return parts


async def test_an_object_is_read_no_further_once_its_reader_has_gone(thin: ThinApp) -> None:
    await asked(thin, "PUT", BODY)
    assert b"".join(await asked(thin, "GET")) == BODY
    assert len(await asked(thin, "GET")) > TAKEN
    assert len(await asked(thin, "GET", taken=TAKEN)) == TAKEN
