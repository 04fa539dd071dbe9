"""PostgreSQL runs every suite of a store; and what is particular to it."""

import pytest

from fencegate.testing.committing import OpenStore
from fencegate.testing.store_suite import StoreSuite
from tests.stores.postgres_fixtures import opener


class TestPostgresStore(StoreSuite):
    @pytest.fixture
    def open_store(self, postgres_url: str) -> OpenStore:
        return opener(postgres_url)

    @pytest.fixture
    def opening(self, postgres_url: str) -> str:
        return (
            "from fencegate_lockservice import stores\n"
            f"async def open_store(): return await stores.open_store({postgres_url!r})\n"
        )
