"""Carries out what was drawn: stops, kills, cuts, fills disks, moves clocks; and puts everything right again."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fencegate.clock import SYSTEM
from fencegate.verify.history import Violation
from fencegate.verify.real import full_disk
from fencegate.verify.real.cast import Cast
from fencegate.verify.real.processes import Process
from fencegate.verify.real.record import ARMS
from fencegate.verify.real.storm import ALWAYS, Fault
from fencegate.verify.real.targets import busy, pick

HOLDER_WITHIN_S = 4.0
STOPS_WITHIN_S = 8.0


@dataclass(slots=True)
class Done:
    """A fault that was carried out, with its times."""

    kind: str
    target: str
    begun_us: int
    ended_us: int
    words: str


class Nemesis:
    def __init__(self, cast: Cast, stop: asyncio.Event) -> None:
        self._cast = cast
        self._stop = stop
        self.done: list[Done] = []
        self.under_way = 0
        self.clocks_moved = False
        self.commits_lost = False

    def able(self) -> list[str]:
        """What this cell can be done to."""
        cast, found = self._cast, list(ALWAYS)
        for name, side in (("store", cast.store), ("resource", cast.resource)):
            if side.servers:
                found += [f"pause {name}", *([f"kill {name}"] if side.killable else [])]
        found += [f"line {name}" for name in ("replica-store", "gateway-resource") if cast.lines[name]]
        if full_disk.ABLE and cast.store.embedded:
            found.append("full disk of replica")
        if full_disk.ABLE and cast.resource.embedded:
            found.append("full disk of gateway")
        if cast.store.standby is not None:
            found.append("failover with loss")
        if cast.store.clock is not None:
            found.append("clock of store")
        if cast.clocks:
            found.append("clock of replica")
        return found

    async def play(self, faults: Sequence[Fault]) -> None:
        """Each at its time; returns when all is healed."""
        self.clocks_moved = self.commits_lost = False
        began_us = SYSTEM.monotonic_us()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await self._wait(fault.at_s - (SYSTEM.monotonic_us() - began_us) / 1e6)
                if self._stop.is_set():
                    break
                group.create_task(self._carry_out(fault))

    async def settle(self) -> list[Violation]:
        """Everybody runs, every line is open. What had ended by itself is told."""
        cast = self._cast
        found = []
        for line in (line for lines in cast.lines.values() for line in lines):
            for proxy in line.proxies:
                proxy.pass_()
        for process in cast.processes:
            process.resume()
            if not process.alive:
                words = f"{process.name} ended by itself, with code {process.code}: {process.last_words()}"
                found.append(Violation("alive", words))
                await self._start(process)
        return found

    async def _carry_out(self, fault: Fault) -> None:
        kind, _, rest = fault.kind.partition(" ")
        does: dict[str, Callable[[Fault, str], Coroutine[Any, Any, str | None]]] = {
            "pause": self._pause,
            "kill": self._kill,
            "stop": self._stop_in_mid_write,
            "line": self._line,
            "full": self._full,
            "clock": self._clock,
            "failover": self._fail_over,
        }
        begun_us = SYSTEM.monotonic_us()
        self.under_way += 1
        try:
            target = await does[kind](fault, rest)
        finally:
            self.under_way -= 1
        if target is not None:
            how = f" ({fault.how})" if fault.how else f" by {fault.by_s:+g} s" if fault.by_s else ""
            now_us = SYSTEM.monotonic_us()
            words = f"{fault.kind}{how}: {target}, for {(now_us - begun_us) / 1e6:.1f} s"
            self.done.append(Done(fault.kind, target, begun_us, now_us, words))

    async def _wait(self, seconds: float) -> None:
        """Shorter when the user wants to stop."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)

    async def _start(self, process: Process, **environment: str) -> None:
        await process.start(**environment)
        cast = self._cast
        if process in cast.workers:
            cast.tell_one(process)

    # --- whom ---

    def _processes(self, name: str) -> list[Process]:
        cast = self._cast
        return {"worker": cast.workers, "gateway": cast.gateways, "replica": cast.replicas}[name]

    async def _holder(self, fault: Fault) -> Process | None:
        """A worker that holds a lock of one arm and is about to write; any other, when there is none for a while."""
        until_us = SYSTEM.monotonic_us() + int(HOLDER_WITHIN_S * 1e6)
        cast = self._cast
        arm = next(arm for arm in ARMS if arm == fault.how)
        while cast.order is not None and SYSTEM.monotonic_us() < until_us:
            cast.listen()
            thinking = cast.ledgers.of(cast.order.episode, arm).thinking
            able = [each for each in cast.workers if each.alive and not each.busy and cast.client(each) in thinking]
            if able:
                return able[fault.which % len(able)]
            await asyncio.sleep(0.01)
        return pick(cast.workers, fault.which)

    # --- what ---

    async def _pause(self, fault: Fault, whom: str) -> str | None:
        if whom in ("store", "resource"):
            return await self._pause_server(fault, whom)
        process = await self._holder(fault) if whom == "holder" else pick(self._processes(whom), fault.which)
        if process is None:
            return None
        with busy(process):
            process.pause()
            await self._wait(fault.for_s)
            process.resume()
        return process.name

    async def _pause_server(self, fault: Fault, whom: str) -> str | None:
        side = self._cast.store if whom == "store" else self._cast.resource
        if side.busy:
            return None
        server = side.servers[fault.which % len(side.servers)]
        with busy(side):
            server.stop()
            await self._wait(fault.for_s)
            server.resume()
        return whom

    async def _kill(self, fault: Fault, whom: str) -> str | None:
        if whom in ("store", "resource"):
            return await self._kill_server(fault, whom)
        process = pick(self._processes(whom), fault.which)
        if process is None:
            return None
        with busy(process):
            await process.kill()
            await self._wait(fault.for_s)
            await self._start(process)
        return process.name

    async def _kill_server(self, fault: Fault, whom: str) -> str | None:
        side = self._cast.store if whom == "store" else self._cast.resource
        if side.busy:
            return None
        server = side.servers[fault.which % len(side.servers)]
        with busy(side):
            await side.kill(server)
            await self._wait(fault.for_s)
            await side.start(server)
        return whom

    async def _stop_in_mid_write(self, fault: Fault, _: str) -> str | None:
        """A gateway that stops itself between taking a write and doing it, past the lease of whoever sent it."""
        process = pick(self._cast.gateways, fault.which)
        if process is None:
            return None
        point = "upstream.send" if self._cast.settings("fenced").kind == "upstream" else "resource.write"
        with busy(process):
            await process.kill()
            await self._start(process, FENCEGATE_FAILPOINT=f"{point}=stop@{1 + fault.which % 5}")
            if await process.stopped(STOPS_WITHIN_S):
                await self._wait(fault.for_s)
                process.resume()
                return process.name
            await process.kill()  # else it would stop some time, and nobody would know
            await self._start(process)
        return None

    async def _line(self, fault: Fault, between: str) -> str | None:
        line = pick(self._cast.lines[between], fault.which)
        if line is None:
            return None
        some = [proxy for place, proxy in enumerate(line.proxies) if fault.which >> 8 >> place & 1] or line.proxies[:1]
        with busy(line):
            for proxy in some:
                match fault.how:
                    case "delay":
                        proxy.delay(0.2 + fault.which % 100 / 100)
                    case "drop":
                        proxy.drop()
                    case "cut":
                        proxy.cut()
                    case "cut after commit":
                        proxy.cut_answers(1 + fault.which % 3, line.commits)
                    case "half-open: no requests":
                        proxy.drop("requests")
                    case "half-open: no answers":
                        proxy.drop("answers")
                    case "hold":
                        proxy.hold()
            await self._wait(fault.for_s)
            for proxy in some:
                proxy.pass_()
        return f"{between}, {line.name}"

    async def _full(self, fault: Fault, whom: str) -> str | None:
        """No file of this process can grow, nor be written to at all, as if its disk had no room left."""
        process = pick(self._processes(whom.rpartition(" ")[2]), fault.which)
        if process is None:
            return None
        with busy(process):
            full_disk.fill(process.pid)
            await self._wait(fault.for_s)
            full_disk.empty(process.pid)
        return process.name

    async def _clock(self, fault: Fault, whose: str) -> str | None:
        cast = self._cast
        self.clocks_moved = True
        if whose == "of store":
            if cast.store.busy or cast.store.clock is None:
                return None
            with busy(cast.store):
                cast.store.clock.move(fault.by_s)
                await self._wait(fault.for_s)
                cast.store.clock.move(0)
            return "store"
        process = pick(cast.replicas, fault.which)
        if process is None:
            return None
        clock = cast.clocks[cast.replicas.index(process)]
        with busy(process):
            for by_s in (fault.by_s, 0):  # a replica looks at the wall clock once, when it begins
                clock.move(by_s)
                await process.kill()
                await self._start(process)
                await self._wait(fault.for_s if by_s else 0)
        return process.name

    async def _fail_over(self, fault: Fault, _: str) -> str | None:
        store = self._cast.store
        if store.busy or store.standby is None:
            return None
        self.commits_lost = True
        with busy(store):
            store.standby.line.hold("answers")
            await self._wait(0.2 + fault.which % 80 / 100)
            address = await asyncio.to_thread(store.standby.fail_over)
            store.servers = [store.standby.primary]
            for line in self._cast.lines["replica-store"]:
                for proxy in line.proxies:
                    proxy.retarget(address)
            await self._wait(fault.for_s)
            await asyncio.to_thread(store.standby.follow_again)
        return "store"
