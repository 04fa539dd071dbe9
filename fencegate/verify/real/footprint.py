"""Leaving nothing behind in a store or resource of the user's own."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fencegate.verify.real.cast import Cast
from fencegate.verify.real.record import ARMS
from fencegate_demo.footprint import file_of, traceless_corners
from fencegate_demo.store_footprint import traceless_store


@asynccontextmanager
async def traceless(found: Cast, remarks: list[str]) -> AsyncIterator[None]:
    """Around all that a cell does; `remarks` are for the user."""
    async with AsyncExitStack() as stack:
        if found.store.venue.mine:
            url = found.store.venue.url
            if stack.enter_context(file_of(url)):
                await stack.enter_async_context(traceless_store(url, found.prefix, remarks))
        if found.resource.venue.mine:
            corners = [found.settings(arm) for arm in ARMS]
            await stack.enter_async_context(traceless_corners(corners, lambda: [(key,) for key in found.keys]))
        yield
