"""Keeps the nodes of a redlock store together: forms it once, tells who votes, brings blank nodes back.

The rules are in `members`; here they are carried out, again and again, in passes that any lock service may make
at any time: each step changes a node only if it still says what was seen.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, UnsafeConfiguration
from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.redlock import members
from fencegate_lockservice.stores.redlock.copy import copy
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.looking import Looking
from fencegate_lockservice.stores.redlock.members import Config, Findings, NodeSays, View
from fencegate_lockservice.stores.redlock.node import MEMBER, Node
from fencegate_lockservice.stores.redlock.polls import poll
from fencegate_lockservice.stores.redlock.witness import Witness

CHANGE_WITHIN_S = 2.0
LOOK_EVERY_S = 2.0
AGAIN_AFTER_S = 0.05
UNUSABLE_AGAIN_AFTER_S = 0.5
WAIT_FOR_ALL_S = 0.5

log = logging.getLogger("fencegate.store.redlock")


class Council:
    """See the head of this file. `shaken` is called when a node lost what it had told its followers."""

    def __init__(self, nodes: Sequence[Node], keys: Keys, clock: Clock, shaken: Callable[[], None]) -> None:
        self._nodes = nodes
        self._keys = keys
        self._clock = clock
        self._shaken = shaken
        self._seats = tuple(node.seat.name for node in nodes)
        self._majority = len(nodes) // 2 + 1
        self._view: View | None = None
        self._why = "the store was not opened"
        self._witness = Witness(nodes, keys, clock)
        self._looking = Looking(nodes, keys, clock, self._witness)
        self._wanted = asyncio.Event()
        self._passed: asyncio.Future[None] | None = None
        self._tending: asyncio.Task[None] | None = None
        self._copying: dict[int, asyncio.Task[None]] = {}

    # --- what others ask ---

    def view(self) -> View:
        """Who votes. Unavailable when a majority of them can't be reached."""
        view = self._view
        if view is None:
            raise Unavailable(self._why)
        up = sum(1 for number in view.voters if self._nodes[number].admitted)
        if up < self._majority:
            count = f"{up} of {len(self._nodes)} nodes can be reached, and it takes a majority"
            fresh = [node.seat.name for node in self._nodes if node.up and not node.admitted]
            raise Unavailable("; ".join([count, *self._down(), *(f"{name}: it has just come back" for name in fresh)]))
        return view

    def _down(self) -> list[str]:
        return [f"{node.seat.name}: {node.error}" for node in self._nodes if not node.up]

    def off_us(self) -> int:
        """How far the clocks of the nodes are ahead of ours: the one in the middle."""
        return self._looking.off_us()

    def poke(self) -> None:
        """Look again soon: something is not as it was."""
        self._wanted.set()

    async def looked(self) -> None:
        """Return when the nodes were looked at anew."""
        if self._passed is None:
            self._passed = asyncio.get_running_loop().create_future()
        self._wanted.set()
        await asyncio.shield(self._passed)

    async def open(self, within_s: float) -> None:
        """Find or form the store. Unavailable when that can't be done in this time."""
        try:
            async with asyncio.timeout(within_s):
                await self._all_up()
                found, _ = await self._looking.look(strict=self._tending is None)
                self._witness.remember(found)  # what they witnessed before they are believed
                while self._view is None:
                    self._check_let_in(len(self._nodes) - self._majority)
                    with suppress(Unavailable):
                        await self._pass()
                    await asyncio.sleep(AGAIN_AFTER_S * self._clock.jitter())
        except TimeoutError:
            self._check_let_in(0)
            raise Unavailable(
                "; ".join([f"the nodes of the store can't be used: {self._why}", *self._down()])
            ) from None
        self._tending = asyncio.get_running_loop().create_task(self._tend())

    def _check_let_in(self, spare: int) -> None:
        """UnsafeConfiguration when more nodes than can be spared refuse the user of the URL: that is no outage."""
        refusing = [node for node in self._nodes if node.refuses]
        if len(refusing) > spare:
            names: dict[str, list[str]] = {}
            for node in refusing:
                names.setdefault(node.error, []).append(node.seat.name)
            raise UnsafeConfiguration("; ".join(f"{', '.join(seats)}: {why}" for why, seats in names.items()))

    async def _all_up(self) -> None:
        """Give those that answer late a moment: a view without them is a view with less to spare."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_FOR_ALL_S):
                while not all(node.up or node.refuses for node in self._nodes):
                    self._wanted.clear()
                    await self._wanted.wait()

    async def close(self) -> None:
        for task in [self._tending, *self._copying.values()]:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if self._passed is not None and not self._passed.done():
            self._passed.set_result(None)

    # --- passes ---

    async def _tend(self) -> None:
        while True:
            pause_s = UNUSABLE_AGAIN_AFTER_S
            self._wanted.clear()
            passed, self._passed = self._passed, None
            try:
                pause_s = LOOK_EVERY_S if await self._pass() else AGAIN_AFTER_S
            except (Unavailable, FencegateError):
                pass  # it was told, and whoever asks for a lock is told
            except Exception:  # it must go on, or a node that comes back would never vote again
                log.exception("the nodes of the store can't be looked after")
            finally:
                if passed is not None and not passed.done():
                    passed.set_result(None)
            try:
                async with asyncio.timeout(pause_s * (0.75 + self._clock.jitter() / 2)):
                    await self._wanted.wait()
                await asyncio.sleep(AGAIN_AFTER_S / 5)
            except TimeoutError:
                pass

    async def _pass(self) -> bool:
        """Look at all nodes and do what has to be done; gives whether nothing is left to do that can be."""
        try:
            found, lines = await self._looking.look(strict=self._tending is None)
            forgetful = self._witness.forgetful(found)
            for number in found:
                self._nodes[number].admit(lines[number] if number not in forgetful else None)
            self._witness.remember(found)
            findings = members.judge(self._seats, found, forgetful)
            if findings is None:
                await self._form(found)
                return False
            if not await self._follow(findings, found):
                return False
            if self._view is not None:
                await self._witness.tell(self._view)
            for number in findings.blank:
                await self._heal(number, found[number], findings.config)
            return all(number in self._copying for number in findings.blank)
        except (Unavailable, UnsafeConfiguration) as error:
            if self._why != str(error):
                self._why = str(error)
                log.error("the store can't be used: %s", error)
            self._view = None
            raise

    async def _change(self, number: int, seen: NodeSays, **fields: str | bytes | int) -> bool:
        """Change what a node says of itself, if it still says what we saw."""
        parts = [part for pair in fields.items() for part in pair]
        asked = self._nodes[number].run(MEMBER, [self._keys.node], seen.state, seen.identity, seen.digest, *parts)
        answers = await poll({number: asked}, CHANGE_WITHIN_S)
        return bool(answers) and answers[number][0] == b"done"

    # --- the first start ---

    async def _form(self, found: Mapping[int, NodeSays]) -> None:
        """Make a store of blank nodes. The first of them decides which store that is, when several of us begin one."""
        self._shaken()
        deployment = found[0].deployment or self._clock.random_id(8)
        wrong = [number for number, node in sorted(found.items()) if node.deployment != deployment]
        for number in [0] if 0 in wrong else wrong:
            fresh = members.identity(self._clock.now_us(), found[number].identity, self._clock.random_id(8))
            fields = members.fields_of(self._seats, number, deployment, fresh, "forming")
            await self._change(number, found[number], **fields)
        if not wrong:
            config = Config(deployment, self._seats, tuple(found[number].identity for number in range(len(found))))
            for number, node in found.items():
                await self._change(number, node, state="voting", config=config.text, digest=config.digest)

    # --- from then on ---

    async def _follow(self, findings: Findings, found: Mapping[int, NodeSays]) -> bool:
        """Take up what the nodes agree on; gives whether all who vote know of it."""
        config = findings.config
        done = True
        for number in findings.behind:
            done &= await self._change(number, found[number], config=config.text, digest=config.digest)
        for number in findings.ready:
            await self._change(number, found[number], state="voting", config=config.text, digest=config.digest)
            done = False  # look again, and find it voting
        before, self._view = self._view, View(config, config.digest, findings.voters)
        if before is None and self._tending is not None:
            log.warning("the store can be used again")
        self._why = ""
        if before is not None and before.digest != config.digest:
            self._shaken()  # a node was replaced: what it had to tell went with it
        return done

    async def _heal(self, number: int, seen: NodeSays, config: Config) -> None:
        """Bring a node back that lost its data: see the head of `members`."""
        if number in self._copying:
            return
        name = self._seats[number]
        if seen.state != "copying" or seen.deployment != config.deployment or seen.identity < config.identities[number]:
            log.error("%s lost its data; it votes again when it has copied that of the others", name)
            self._shaken()
            fresh = members.identity(self._clock.now_us(), config.identities[number], self._clock.random_id(8))
            fields = members.fields_of(self._seats, number, config.deployment, fresh, "copying")
            await self._change(number, seen, **fields)
            return  # look again, and find it copying
        if seen.identity != config.identities[number]:
            config = config.seated(number, seen.identity)
            found, _ = await self._looking.look(strict=self._tending is None)
            for other, node in found.items():
                if node.state == "voting" and node.config is not None:
                    merged = node.config.merged(config)
                    await self._change(other, node, config=merged.text, digest=merged.digest)
            return  # look again, and find them agreed
        if self._view is not None and self._view.digest == config.digest:
            self._copying[number] = asyncio.get_running_loop().create_task(self._copy(number, seen, self._view))

    async def _copy(self, number: int, seen: NodeSays, view: View) -> None:
        """Copy all registers from those who know of the new identity, and let the node vote."""
        name = self._seats[number]
        try:
            await copy(self._nodes, self._keys, view, number, seen.identity)
            if await self._change(number, seen, state="voting", config=view.config.text, digest=view.digest):
                log.warning("%s has copied the data of the others, and votes again", name)
        except Unavailable as error:
            log.warning("%s could not copy the data of the others yet: %s", name, error)
        finally:
            del self._copying[number]
            self.poke()
