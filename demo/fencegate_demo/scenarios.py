"""The scenarios that there are, by name."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fencegate_demo import gateway_pause, gc_pause
from fencegate_demo.cast import Cast


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    summary: str
    play: Callable[[Cast], Awaitable[None]]
    failpoint: str | None = None
    """Where holder A's gateway stops itself; with one, A has a gateway of its own, and B another."""


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("gc-pause", gc_pause.SUMMARY, gc_pause.play),
        Scenario("gateway-pause", gateway_pause.SUMMARY, gateway_pause.play, gateway_pause.FAILPOINT),
    )
}
