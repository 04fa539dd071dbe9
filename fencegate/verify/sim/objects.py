"""Runs in which the resource is a bucket, and the real adapter stands before it in two gateways, which fail as well.

All else is as in every other run: the real engine, lock calls and client, the workloads, the faults, and the judge.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from fencegate.clock import repeatable, seeded
from fencegate.verify.history import Violation
from fencegate.verify.judge import judge
from fencegate.verify.sim.bucket import NAME as BUCKET
from fencegate.verify.sim.bucket import ODD, BucketServer
from fencegate.verify.sim.caller import Caller
from fencegate.verify.sim.clock import SimClock
from fencegate.verify.sim.connection import SimConnection
from fencegate.verify.sim.faults import KINDS
from fencegate.verify.sim.gateways import Gateway, GatewayLink, Layout, decode
from fencegate.verify.sim.loop import BEGINNING_US
from fencegate.verify.sim.resource import ResourceServer, Updates
from fencegate.verify.sim.schedule import Plan, Run, Stage
from fencegate.verify.sim.service import Wire
from fencegate.verify.sim.workloads import WORKLOADS
from fencegate.verify.sim.world import Process, without_collector
from fencegate_adapters.objects.bucket.keys import object_place
from fencegate_adapters.objects.frame import decode as unframed

GATEWAYS = 2
STOPPED_AT_WORK = 0.1
"""How often a gateway is paused a moment after it was asked for something, mostly together with who asked."""
ASLEEP_AFTER_ODD = 0.6
AT_WORK_US = 12_000
LONG_US = 4_500_000
PAUSES_US = (300_000, 2_000_000, LONG_US)
WORKLOADS_OF_OBJECTS = ("list", "list", "register", "counter", "set", "set", "set")


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """What a run is made of; with the same plan it is the same run."""

    plan: Plan
    layout: Layout = "framed"
    odd: tuple[str, ...] = ODD
    """What the servers before the bucket do with a write, now and then."""


def plan_of(seed: int) -> ObjectPlan:
    """The plan of a seed: small, for a fault does what it does within a few holds."""
    chance = seeded(f"objects {seed}")
    kinds = tuple(kind for kind in KINDS if chance.random() < 0.4)
    plan = Plan(
        seed,
        callers=chance.choice((2, 3)),
        replicas=1,
        keys=1,
        rounds=chance.choice((2, 3, 4)),
        faults=kinds if "messages" in kinds or chance.random() < 0.4 else (*kinds, "messages"),
        workload=chance.choice(WORKLOADS_OF_OBJECTS),
    )
    return ObjectPlan(plan, chance.choice(("framed", "pointer")))


@dataclass(frozen=True, slots=True)
class ObjectRun:
    """What came of a plan, and all that is wrong with it."""

    done: Run
    violations: list[Violation]


def run(plan: ObjectPlan) -> ObjectRun:
    """Play it, and judge it."""
    with repeatable(plan.plan.seed), without_collector():
        stage = ObjectStage(plan)
        try:
            done = stage.play()
            return ObjectRun(done, [*judge(done.history), *_written_after_all(stage)])
        finally:
            stage.world.end()


def _written_after_all(stage: "ObjectStage") -> Iterator[Violation]:
    """I4: what was said not to be written is not there, and nobody has seen it."""
    for link in stage.links:
        for key, update in link.not_written:
            shown = [read.updates or () for read in stage.history.reads if read.lock_key == key]
            if any(update in updates for updates in [*shown, stage.history.final[key]]):
                yield Violation("I4", f"{key}: {update} was told as not written, and was")


class ObjectStage(Stage):
    """All who take part: those of every run, with gateways and a bucket in place of the resource."""

    def __init__(self, plan: ObjectPlan) -> None:
        self._layout: Layout = plan.layout
        self._odd_ways = plan.odd
        self.links: list[GatewayLink] = []
        super().__init__(plan.plan)
        self.resource = cast(ResourceServer, _Bucket(self))

    @cached_property
    def bucket(self) -> BucketServer:
        server = BucketServer(self._odd_ways)
        server.when_odd = self._odd
        return server

    @cached_property
    def gateways(self) -> list[Gateway]:
        found = [
            Gateway(self.network, self.bucket, f"gateway-{number}", self._offset_us(), self._layout)
            for number in range(GATEWAYS)
        ]
        for gateway in found:
            gateway.when_asked = self._at_work
        return found

    def caller(self) -> Caller:
        self._number += 1
        process = self.world.process(f"caller-{self._number}")
        wire = Wire(self.network, self.replicas, process)
        link = GatewayLink(self.network, self.gateways, process, appends=self.plan.workload == "list")
        self.links.append(link)
        clock = SimClock(self.world, self._offset_us())
        connection = SimConnection(process, wire, clock)
        caller = Caller(self.world, process, connection, cast(Any, link), clock, self.history)
        caller.keys = self.keys
        process.spawn(caller.work(WORKLOADS[self.plan.workload], self.plan, self._one_is_done))
        return caller

    def play(self) -> Run:
        chance, world = self.world.chance, self.world
        faults = (self._pause_one, self._crash_one, self._cut_one_off, *[self._pause_holders] * 3)
        for _ in range(chance.randint(2, 4 + 2 * self.plan.rounds)):
            world.after(chance.randrange(self.plan.storm_us), chance.choice(faults))
        return super().play()

    # --- what befalls gateways ---

    def _say(self, what: str) -> None:
        self.history.faults.append(f"{(self.world.now_us - BEGINNING_US) / 1e6:.3f} s: {what}")

    def _pause(self, process: Process, for_us: int) -> None:
        process.pause(for_us)
        self._say(f"{process.name} paused for {for_us / 1e6:g} s")

    def _at_work(self, gateway: Gateway, caller: Process) -> None:
        """Stop a gateway with a request in its hands, and who asked as well: else its lease would be renewed."""
        chance, stormy = self.world.chance, self.world.now_us < BEGINNING_US + self.plan.storm_us
        if not stormy or chance.random() >= STOPPED_AT_WORK:
            return
        for_us = chance.choice(PAUSES_US)
        self.world.after(chance.randrange(AT_WORK_US), lambda: self._pause(gateway.process, for_us))
        if chance.random() < 0.7:
            self._pause(caller, for_us)

    def _odd(self, gateway: Process) -> None:
        """A write of unknown fate, and all who could know more fall asleep: when they wake, others hold the lock."""
        if self.world.chance.random() < ASLEEP_AFTER_ODD:
            self._pause_holders()
            self._pause(gateway, LONG_US)

    def _pause_holders(self) -> None:
        """Longer than any lease."""
        for caller in self.callers:
            if caller.holding:
                self._pause(caller.process, LONG_US)

    def _pause_one(self) -> None:
        self._pause(self.world.chance.choice(self.gateways).process, self.world.chance.choice(PAUSES_US))

    def _crash_one(self) -> None:
        gateway = self.world.chance.choice(self.gateways)
        if gateway.process.alive:
            gateway.crash()
            self._say(f"{gateway.name} crashed")
            self.world.after(self.world.chance.randint(10_000, 1_000_000), gateway.start)

    def _cut_one_off(self) -> None:
        pair = frozenset((self.world.chance.choice(self.gateways).name, BUCKET))
        self.network.cut.add(pair)
        self._say(f"{' and '.join(sorted(pair))} can't hear each other")
        self.world.after(self.world.chance.randint(100_000, 3_000_000), lambda: self.network.cut.discard(pair))


class _Bucket:
    """What is in the bucket, as a run tells it."""

    def __init__(self, stage: ObjectStage) -> None:
        self._stage = stage

    @property
    def values(self) -> dict[str, Updates]:
        return {key: self._value(key) for key in self._stage.keys}

    @property
    def stale(self) -> int:
        return sum(gateway.stale for gateway in self._stage.gateways)

    def restart(self) -> None:
        """A bucket forgets nothing."""

    def _value(self, key: str) -> Updates:
        objects = self._stage.bucket.objects
        found = objects.get(object_place(key.removeprefix("sim:")).key)
        if found is None:
            return ()
        header, body_at = unframed(found.data, len(found.data))
        if header.tombstone:
            return ()
        body = header.standing.body if header.standing is not None else ""
        if not body:
            return decode(found.data[body_at:])
        return decode(objects[body].data) if body in objects else ()
