"""The time of a server, as far as its answers tell: an interval, which the next answer narrows.

An answer that was asked for at `sent` and came at `heard`, and says that it was `at` on the server then, means that
the server's clock is between `at - heard` and `at - sent` ahead of ours. Two clocks drift apart, so what is known wears
out. A server whose clock was set is believed at once.
"""

from collections.abc import Callable

from fencegate.clock import Clock
from fencegate.core.ports import Interval, Unavailable

DRIFT_PPM = 200
MAX_OFF_US = 10_000_000
STALE_US = 60_000_000
COMPARE_EVERY_US = 20_000

_new = tuple.__new__


class ServerTime:
    """See the head of this file. `server` names it in what is said of it."""

    def __init__(self, clock: Clock, server: str, ours: Callable[[], int] | None = None) -> None:
        """`ours` is what the server's time must agree with: by default the machine's clock as it is now. (The clock of
        this process is read once, and stays behind when the machine was paused; only tokens follow it.)"""
        self._monotonic_us = clock.monotonic_us
        self._ours = ours or clock.wall_us
        self._server = server
        self._low_us = 0
        self._high_us = 0
        self._known_us = 0
        """When it was last heard; 0: never."""
        self._sure_until_us = 0
        """Until when it need not be looked at again whether the two clocks agree."""

    def heard(self, sent_us: int, at_us: int) -> None:
        """The server said that it is `at_us`, in an answer to what was sent at `sent_us` of our monotonic clock."""
        heard_us = self._monotonic_us()
        low_us, high_us = at_us - heard_us, at_us - sent_us
        if self._known_us:
            worn_us = self._worn_us(heard_us)
            narrowed = max(low_us, self._low_us - worn_us), min(high_us, self._high_us + worn_us)
            if narrowed[0] <= narrowed[1]:
                low_us, high_us = narrowed
            else:  # it was set: whether it agrees with ours has to be seen anew
                self._sure_until_us = 0
        self._low_us, self._high_us, self._known_us = low_us, high_us, heard_us

    def forget(self) -> None:
        """Another server may answer from now on: what is known of the last one's clock says nothing."""
        self._known_us = 0
        self._sure_until_us = 0

    def is_stale(self) -> bool:
        """Whether it is time to ask again."""
        return not self._known_us or self._monotonic_us() - self._known_us > STALE_US // 4

    def now(self) -> Interval:
        """The server's time. Unavailable while it can't be known, or when the two clocks are far apart."""
        now_us = self._monotonic_us()
        if now_us > self._sure_until_us:
            self._make_sure(now_us)
        worn_us = (now_us - self._known_us) * DRIFT_PPM // 1_000_000
        # As `Interval(…)` makes it, but for a call of Python: it is asked for three times with each lock.
        return _new(Interval, (now_us + self._low_us - worn_us, now_us + self._high_us + worn_us))

    def _make_sure(self, now_us: int) -> None:
        """That it is known, and that the two clocks agree; for a while."""
        known_us = self._known_us
        if not known_us or now_us - known_us > STALE_US:
            raise Unavailable(f"{self._server} has not said what time it is")
        off_us = now_us + (self._low_us + self._high_us) // 2 - self._ours()
        if abs(off_us) > MAX_OFF_US:
            raise Unavailable(clocks_differ(self._server, off_us))
        self._sure_until_us = min(now_us + COMPARE_EVERY_US, known_us + STALE_US)

    def _worn_us(self, now_us: int) -> int:
        return (now_us - self._known_us) * DRIFT_PPM // 1_000_000


def clocks_differ(server: str, off_us: int) -> str:
    """What is said when a replica refuses to work because of its clock, or the store's."""
    which = "ahead of" if off_us > 0 else "behind"
    return (
        f"the clock of {server} is {abs(off_us) / 1_000_000:.1f} s {which} the clock of this lock service, and tokens"
        f" follow the clock: nothing is granted until they agree within {MAX_OFF_US // 1_000_000} s (check NTP on both;"
        " a process that was paused, or begun before its clock was set, has to be restarted)"
    )
