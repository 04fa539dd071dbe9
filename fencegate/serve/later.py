"""An app that is made when it is first asked: to import a framework takes longer than to start everything else."""

import asyncio
from collections.abc import Callable

from fencegate.web.asgi import App, Receive, Scope, Send


class Later:
    """Makes its app in a thread, so that the calls under way are not held up."""

    def __init__(self, make: Callable[[], App]) -> None:
        self._make = make
        self._made: asyncio.Task[App] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._made is None:
            self._made = asyncio.ensure_future(asyncio.to_thread(self._make))
        # Shielded: one who goes away while it is made must not cancel it for the others.
        app = await asyncio.shield(self._made)
        await app(scope, receive, send)
