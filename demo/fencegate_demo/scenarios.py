"""The scenarios that there are, by name."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fencegate_demo import first_write, gateway_pause, gc_pause
from fencegate_demo.cast import Cast


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    summary: str
    play: Callable[[Cast], Awaitable[None]]
    failpoint: str | None = None
    """Where holder A's gateway stops itself; with one, A has a gateway of its own, and B another."""
    is_about_claims: bool = False
    """Whether the arms differ by the claim on acquire. Then the check is on in both, and reads show no token."""

    def arm_in_words(self, arm: str) -> str:
        return (_BY_CLAIM if self.is_about_claims else BY_CHECK)[arm]


BY_CHECK = {"fenced": "the resource compares tokens", "unfenced": "the same workload, the check off"}
_BY_CLAIM = {
    "fenced": "the fence is claimed when the lock is granted",
    "unfenced": "the same workload and the same check, nothing claimed",
}


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("gc-pause", gc_pause.SUMMARY, gc_pause.play),
        Scenario("gateway-pause", gateway_pause.SUMMARY, gateway_pause.play, gateway_pause.FAILPOINT),
        Scenario("first-write", first_write.SUMMARY, first_write.play, is_about_claims=True),
    )
}
