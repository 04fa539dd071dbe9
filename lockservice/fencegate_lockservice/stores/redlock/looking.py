"""Asks the nodes of a redlock store what they say of themselves, and what time it is there."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import msgspec

from fencegate.clock import Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate_lockservice.stores.redlock import members
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.members import NodeSays
from fencegate_lockservice.stores.redlock.node import Line, Node
from fencegate_lockservice.stores.redlock.polls import poll
from fencegate_lockservice.stores.redlock.witness import Witness

LOOK_WITHIN_S = 2.0
LOOK_FOR_OTHERS_S = 0.3
MAX_ROUND_US = 2_000_000

log = logging.getLogger("fencegate.store.redlock")


class Looking:
    """Looks at all nodes at once. A node of something else is an error when `strict`, and else left out."""

    def __init__(self, nodes: Sequence[Node], keys: Keys, clock: Clock, witness: Witness) -> None:
        self._nodes = nodes
        self._keys = keys
        self._clock = clock
        self._witness = witness
        self._seats = tuple(node.seat.name for node in nodes)
        self._majority = len(nodes) // 2 + 1
        self._offsets_us: dict[int, int] = {}
        self._strange: dict[int, str] = {}

    def off_us(self) -> int:
        """How far the clocks of the nodes are ahead of ours: the one in the middle."""
        return int(median(self._offsets_us.values())) if self._offsets_us else 0

    async def look(self, *, strict: bool) -> tuple[dict[int, NodeSays], dict[int, Line]]:
        """What the nodes say of themselves, and over which line each was asked."""
        lines = {node.number: node.line for node in self._nodes if node.line is not None}
        sent_us = self._clock.now_us()
        for number, line in lines.items():
            line.call("TIME").add_done_callback(partial(self._heard_time, number, sent_us))
        asked = {number: line.call("HGETALL", self._keys.node) for number, line in lines.items()}
        if strict:
            answers = await poll(asked, LOOK_WITHIN_S)
            return {number: members.node_of(answer) for number, answer in answers.items()}, lines
        answers = await poll(asked, LOOK_WITHIN_S, self._can_go_on)
        if len(answers) < len(asked):  # one that hangs must not keep those waiting that came back
            answers |= await poll(asked, LOOK_FOR_OTHERS_S)
        found, strange = self._sorted(answers)
        for number, why in strange.items():
            if self._strange.get(number) != why:
                log.error("%s is left out until it is emptied: %s", self._seats[number], why)
        unheard = {number: why for number, why in self._strange.items() if number not in found}
        self._strange = unheard | strange
        return found, lines

    def _can_go_on(self, answers: Mapping[int, Any]) -> bool:
        """Whether enough of those that vote have answered."""
        found, _ = self._sorted(answers)
        voting = {number for number, node in found.items() if node.state == "voting"}
        return len(voting - self._witness.forgetful(found)) >= self._majority

    def _sorted(self, answers: Mapping[int, Any]) -> tuple[dict[int, NodeSays], dict[int, str]]:
        """What the nodes of this store say, and what is strange about the others."""
        found: dict[int, NodeSays] = {}
        strange: dict[int, str] = {}
        for number, answer in answers.items():
            try:
                found[number] = members.node_of(answer)
            except (UnsafeConfiguration, msgspec.MsgspecError, ValueError) as error:
                strange[number] = str(error)
        strange |= members.strangers(self._seats, found)
        return {number: node for number, node in found.items() if number not in strange}, strange

    def _heard_time(self, number: int, sent_us: int, answer: asyncio.Future[Any]) -> None:
        now_us = self._clock.now_us()
        if answer.cancelled() or answer.exception() is not None or not 0 <= now_us - sent_us <= MAX_ROUND_US:
            return  # one that took long tells little: this process may have been stopped
        seconds, micros = answer.result()
        self._offsets_us[number] = int(seconds) * 1_000_000 + int(micros) - (sent_us + now_us) // 2
