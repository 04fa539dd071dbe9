"""How far the clock of this replica is from that of etcd, as the header `Date` of a page tells: in whole seconds."""

import email.utils

from fencegate.clock import Clock
from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.etcd.endpoint import Endpoint
from fencegate_lockservice.stores.etcd.grpc import NotSent
from fencegate_lockservice.stores.server_time import MAX_OFF_US, clocks_differ

SECOND_US = 1_000_000


class ClockCheck:
    """What is known of it. Only what is off beyond the rounding counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._off_us = 0

    def check(self) -> None:
        """Unavailable when the two are surely more than 10 s apart."""
        if abs(self._off_us) > MAX_OFF_US:
            raise Unavailable(clocks_differ("etcd", self._off_us))

    async def ask(self, endpoint: Endpoint) -> bool:
        """Look at the clock of a member; whether it has shown one."""
        asked_us = self._clock.monotonic_us()
        try:
            named, _ = await endpoint.get("/version")
            at_us = int(email.utils.parsedate_to_datetime(named["date"]).timestamp()) * SECOND_US
        except (NotSent, KeyError, ValueError):
            return False
        now_us = self._clock.now_us()
        earliest_us = now_us - (self._clock.monotonic_us() - asked_us)
        ahead_us, behind_us = at_us - now_us, earliest_us - (at_us + SECOND_US)
        self._off_us = ahead_us if ahead_us > 0 else -behind_us if behind_us > 0 else 0
        return True
