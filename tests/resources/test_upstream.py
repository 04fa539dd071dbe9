"""An HTTP service behind a fence keeps the resource contract, as far as a service that knows nothing of it can."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import quote

import pytest

from fencegate.core.ports import Key, Outgoing, Resource, Seen
from fencegate.testing.resource_suite import PER_KEY, Mode, ResourceSuite
from fencegate_adapters.http import Upstream
from tests.resources.databases import KINDS, make_database
from tests.resources.plain_service import PlainService

_numbers = itertools.count()


@pytest.fixture(scope="module")
def service() -> Iterator[PlainService]:
    running = PlainService()
    yield running
    running.kill()


class ServiceSubject:
    """The texts of the service, below a path of this test's own."""

    def __init__(self, service: PlainService, fence: str) -> None:
        self._base = f"{service.url}/kv/{next(_numbers)}"
        self._fence = fence

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> Resource:
        return Upstream("s", self._base, fence=self._fence, guard_template=guard, mode=mode)

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        request = Outgoing("PUT", _target(key), body=text.encode(), writes=True)
        answer, seen = await cast(Upstream, resource).forward(request, fence, token)
        assert answer.status in (200, 201)
        assert [part async for part in answer.body] == [b"kept"]
        return seen

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        answer, _ = await cast(Upstream, resource).forward(Outgoing("GET", _target(key)), fence, token)
        text = b"".join([part async for part in answer.body]).decode()
        assert answer.status in (200, 404)
        return text if answer.status == 200 else None


def _target(key: Key) -> bytes:
    return b"".join(b"/" + quote(segment, safe="").encode() for segment in key)


# The rules are the same code over each database; these are about what the databases do differently.
ON_ALL_DATABASES = frozenset(
    {
        "test_a_lower_token_is_refused_and_nothing_is_written",
        "test_tokens_above_2_to_the_53_compare_exactly",
        "test_concurrent_writes_never_go_back",
        "test_hostile_keys_and_fences_are_all_distinct",
        "test_marks_of_shadow_mode_do_not_count_once_it_enforces",
        "test_a_floor_lets_a_changed_guard_open_and_refuses_everything_below_it",
        "test_a_floor_binds_an_adapter_that_was_open_already",
    }
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("kind", KINDS if metafunc.function.__name__ in ON_ALL_DATABASES else ("sqlite",))


class TestUpstream(ResourceSuite):
    @pytest.fixture
    def subject(
        self, kind: str, service: PlainService, request: pytest.FixtureRequest, tmp_path: Path
    ) -> ServiceSubject:
        return ServiceSubject(service, make_database(kind, request, tmp_path).url)
