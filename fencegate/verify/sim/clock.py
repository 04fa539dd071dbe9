"""The clock of a simulated process: the world's, a little off, and chance from the world's seed."""

from fencegate.verify.sim.loop import BEGINNING_US
from fencegate.verify.sim.world import World


class SimClock:
    """`offset_us` is how far its Unix time is from the world's."""

    def __init__(self, world: World, offset_us: int = 0) -> None:
        self._world = world
        self.offset_us = offset_us

    def now_us(self) -> int:
        return self._world.now_us + self.offset_us

    def wall_us(self) -> int:
        return self.now_us()

    def monotonic_us(self) -> int:
        return self._world.now_us - BEGINNING_US + 1_000_000

    def random_id(self, bytes_: int = 12) -> str:
        return f"{self._world.chance.getrandbits(bytes_ * 8):0{bytes_ * 2}x}"

    def jitter(self) -> float:
        return self._world.chance.random()
