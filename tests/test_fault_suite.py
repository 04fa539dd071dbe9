"""The fault suite itself: a toy store that keeps the contract passes, and one that breaks it does not."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from fencegate.clock import Clock
from fencegate.core.model import Claimant, Hold
from fencegate.core.ports import Store
from fencegate.testing import crowd as crowds
from fencegate.testing.crowd import Crowd
from fencegate.testing.fault_suite import FaultSuite, FaultyServer, OpenThrough, Replicas, replicas_through
from fencegate.testing.told import Grant, Told
from tests.toy_store import ToyServer, ToyStore


def opening(*defects: str) -> OpenThrough:
    """Each store that is opened has the next of these defects, and none when they are used up."""
    left = iter(defects)

    async def open_(address: str, clock: Clock) -> Store:
        store = ToyStore(address, clock, next(left, ""))
        await store.open()
        return store

    return open_


class TestToyStoreUnderFaults(FaultSuite):
    commit_mark = b'"commit"'

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[FaultyServer]:
        server = ToyServer(tmp_path)
        server.start()
        yield server
        server.close()

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        return opening()


# --- stores that break the contract ----------------------------------------------------------------------------------


class Suite(FaultSuite):
    """Not collected: its tests are called by those below."""

    __test__ = False
    commit_mark = b'"commit"'


@contextlib.asynccontextmanager
async def replicas_over(
    folder: Path, server: str = "", *, clients: Sequence[str] = ()
) -> AsyncIterator[tuple[Replicas, ToyServer]]:
    """Replicas over a toy store with these defects."""
    running = ToyServer(folder, server)
    running.start()
    try:
        async with replicas_through([f"127.0.0.1:{running.port}"], opening(*clients)) as replicas:
            yield replicas, running
    finally:
        running.close()


def crowd_of(replicas: Replicas) -> Crowd:
    return Crowd([replica.engine for replica in replicas])


async def test_a_server_that_compares_nothing_is_found_out(tmp_path: Path) -> None:
    async with replicas_over(tmp_path, server="compares-nothing") as (replicas, _):
        with pytest.raises(AssertionError, match=r"two held one lock at once|one token|granted twice|went back"):
            async with crowd_of(replicas) as crowd:
                for _ in range(20):
                    await crowd.is_served()
                    crowd.told.judge()


async def test_a_replica_that_ends_leases_too_soon_is_found_out(tmp_path: Path) -> None:
    async with replicas_over(tmp_path, clients=["is-ahead-of-time"]) as (replicas, _):
        with pytest.raises(AssertionError, match="two held one lock at once"):
            async with crowd_of(replicas) as crowd:
                for _ in range(200):
                    await crowd.is_served()
                    crowd.told.judge()


async def test_a_server_that_forgets_when_it_is_killed_is_found_out(tmp_path: Path) -> None:
    async with replicas_over(tmp_path, server="forgets-when-killed") as (replicas, server):
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            await Suite().test_a_lease_outlives_the_server(replicas, server)


async def test_a_server_that_says_conflict_though_it_wrote_is_found_out(tmp_path: Path) -> None:
    async with replicas_over(tmp_path, server="says-conflict-though-it-wrote") as (replicas, _):
        with pytest.raises(AssertionError, match="its commit was Conflict"):
            await Suite().test_what_is_said_of_a_commit_is_true_whatever_the_line_does(replicas)


async def test_a_store_that_says_unavailable_when_it_got_no_answer_is_found_out(tmp_path: Path) -> None:
    async with replicas_over(tmp_path, clients=["says-unavailable-when-unanswered"] * 2) as (replicas, _):
        with pytest.raises(AssertionError, match="was Unavailable, and is there"):
            await Suite().test_what_is_said_of_a_commit_is_true_whatever_the_line_does(replicas)


async def test_a_store_that_says_yes_when_it_is_cut_off_is_found_out(tmp_path: Path) -> None:
    async with replicas_over(tmp_path, clients=["says-yes-when-cut-off"] * 2) as (replicas, _):
        with pytest.raises(AssertionError, match="was done, and is not there"):
            await Suite().test_what_is_said_of_a_commit_is_true_whatever_the_line_does(replicas)


async def test_a_store_that_waits_for_ever_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "ANSWER_WITHIN_S", 1.0)
    async with replicas_over(tmp_path, clients=["waits-for-ever"] * 2) as (replicas, _):
        with pytest.raises(AssertionError, match=r"^0 calls failed"):
            await Suite().test_a_black_hole(crowd_of(replicas), replicas)


# --- the judge -------------------------------------------------------------------------------------------------------


def grant(token: int, asked: int, told: int, until: int, request: str = "", lock_token: str = "") -> Grant:
    request = request or f"r{token}-{asked}"
    who = Claimant(request, lock_token or request, "A", 1_000_000)
    return Grant("k", request, Hold(who, token, 0, 0), asked, told, until)


def judge(*grants: Grant, outages: list[tuple[int, int]] | None = None) -> None:
    told = Told(outages=outages or [])
    for one in grants:
        told.granted(one)
    told.judge()


def test_the_judge_agrees_with_what_can_be_true() -> None:
    again = grant(5, 10, 30, 40, "same")
    judge(grant(1, 0, 10, 20), grant(5, 10, 20, 40, "same"), again, grant(4, 15, 45, 50), outages=[(21, 44)])


@pytest.mark.parametrize(
    ("grants", "says"),
    [
        ([grant(1, 0, 1, 2, "a"), grant(1, 3, 4, 5, "b")], "one token"),
        ([grant(1, 0, 1, 2, "a"), grant(2, 3, 4, 5, "a")], "granted twice"),
        ([grant(1, 0, 1, 2, "a", "x"), grant(1, 3, 4, 5, "a", "y")], "granted twice"),
        ([grant(2, 0, 1, 2), grant(1, 3, 4, 5)], "tokens went back"),
        ([grant(1, 0, 1, 9), grant(2, 3, 4, 12)], "at once"),
        ([grant(1, 0, 1, 30), grant(2, 3, 4, 5), grant(3, 6, 7, 8)], "at once"),
    ],
)
def test_the_judge_sees_what_can_not_be_true(grants: list[Grant], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        judge(*grants)


def test_the_judge_sees_a_grant_in_an_outage() -> None:
    with pytest.raises(AssertionError, match="out of reach"):
        judge(grant(1, 5, 6, 9), outages=[(4, 7)])
