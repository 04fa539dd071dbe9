"""When a command has to end: the rule, without a clock and without a process.

It is asked to end (SIGTERM) so early that it has time for it while the lease still lives, and ended (SIGKILL) when its
grace is over or at the deadline, whichever comes first. Once asked, no renewal takes that back.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Patience:
    """Times are microseconds on the clock that the holder and the guard share."""

    grace_us: int
    ttl_us: int
    deadline_us: int
    asked_us: int | None = None

    def extend(self, deadline_us: int) -> None:
        """A renewal succeeded; one never shortens."""
        self.deadline_us = max(self.deadline_us, deadline_us)

    def shorten(self, deadline_us: int | None) -> None:
        """The lock will be taken away before the lease would have run out."""
        if deadline_us is not None:
            self.deadline_us = min(self.deadline_us, deadline_us)

    def ask(self, now_us: int) -> None:
        """The command has to end, from now on; the first reason counts."""
        if self.asked_us is None:
            self.asked_us = now_us

    @property
    def asks_at_us(self) -> int:
        """When it is asked to end if there is no news.

        At most a quarter of the TTL ahead: a renewal is due with two thirds left, and a slow one must not cost the
        command its life.
        """
        return self.deadline_us - min(self.grace_us, self.ttl_us // 4)

    @property
    def ends_at_us(self) -> int:
        """When it is ended, once it was asked."""
        return min((self.asked_us or 0) + self.grace_us, self.deadline_us)
