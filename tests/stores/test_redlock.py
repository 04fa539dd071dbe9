"""The store over five independent servers: the store suite, and what is particular to it."""

import pytest

from fencegate.core.ports import Store
from fencegate.testing.committing import OpenStore
from fencegate.testing.store_suite import StoreSuite
from fencegate_lockservice import stores


class TestRedlockStore(StoreSuite):
    @pytest.fixture
    def open_store(self, redlock_url: str) -> OpenStore:
        async def open_() -> Store:
            return await stores.open_store(redlock_url)

        return open_

    @pytest.fixture
    def opening(self, redlock_url: str) -> str:
        return (
            "from fencegate_lockservice import stores\n"
            f"async def open_store(): return await stores.open_store({redlock_url!r})\n"
        )
