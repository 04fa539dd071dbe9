"""What a store must bear whose server has a clock that leases go by: that clock is moved, under load.

class TestMyStoreWithAMovedClock(ClockSuite):
    fixtures `server` (its `port`) and `open_through` as in `FaultSuite`, and
    @pytest.fixture
    def move_clock(self) -> MoveClock: ...
"""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import StoreUnavailable
from fencegate.testing.caller import Caller, until
from fencegate.testing.crowd import Crowd
from fencegate.testing.faulty_replicas import FaultyServer, OpenThrough, Replicas, at_work, replicas_through

MoveClock = Callable[[float], None]
"""Sets the server's clock so many seconds off the real one; 0 sets it right."""


class ClockSuite:
    """Leases end sooner or later than was said, so holders are kept apart by their tokens alone: those must hold."""

    @pytest.fixture
    def addresses(self, server: FaultyServer) -> Sequence[str]:
        return [f"127.0.0.1:{server.port}"]  # type: ignore[attr-defined]

    @pytest.fixture
    async def replicas(self, addresses: Sequence[str], open_through: OpenThrough) -> AsyncIterator[Replicas]:
        async with replicas_through(addresses, open_through) as found:
            yield found

    async def test_tokens_rise_whichever_way_the_clock_of_the_server_is_moved(
        self, replicas: Replicas, move_clock: MoveClock
    ) -> None:
        crowd = Crowd([replica.engine for replica in replicas])
        crowd.told.clocks_moved = True
        try:
            async with at_work(crowd):
                for off_s in (4.0, -4.0, 0.0):
                    move_clock(off_s)
                    await until(partial(_is_followed, replicas, off_s))
                    await crowd.is_served()
        finally:
            move_clock(0.0)

    @pytest.mark.parametrize("off_s", [40.0, -40.0])
    async def test_nothing_is_granted_while_the_clock_of_the_server_is_far_off_and_all_is_well_when_it_is_right_again(
        self, replicas: Replicas, move_clock: MoveClock, off_s: float
    ) -> None:
        crowd = Crowd([replica.engine for replica in replicas])
        crowd.told.clocks_moved = True
        try:
            async with at_work(crowd):
                move_clock(off_s)
                await crowd.fails(8)
                for replica in replicas:
                    with pytest.raises(StoreUnavailable, match=r"clock.*NTP"):
                        await Caller(replica.engine, "A").acquire(f"off-{replica.engine.replica}")
                move_clock(0.0)
                await crowd.is_served()
        finally:
            move_clock(0.0)


async def _is_followed(replicas: Replicas, off_s: float) -> bool:
    """Whether every replica goes by the time that the server has now."""
    try:
        offs_us = [replica.engine.now().latest - SYSTEM.now_us() for replica in replicas]
    except StoreUnavailable:
        return False
    return all(abs(off_us - off_s * 1_000_000) < 2_000_000 for off_us in offs_us)
