"""Finds nodes that came back from a backup: each node counts its votes, and the others remember how many it had.

What was known before a node is asked is held against what it says. So a count that another lock service reported in the
meantime accuses nobody.
"""

from collections.abc import Mapping, Sequence

from fencegate.clock import Clock
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.members import NodeSays, View, Votes, witness_field
from fencegate_lockservice.stores.redlock.node import WITNESS, Node
from fencegate_lockservice.stores.redlock.polls import poll

TELL_EVERY_US = 10_000_000
TELL_WITHIN_S = 2.0


class Witness:
    """What is known of the votes of each node, here and on the other nodes."""

    def __init__(self, nodes: Sequence[Node], keys: Keys, clock: Clock) -> None:
        self._nodes = nodes
        self._keys = keys
        self._clock = clock
        self._votes = [Votes()] * len(nodes)
        self._told = [Votes()] * len(nodes)
        self._due_us = 0

    def forgetful(self, found: Mapping[int, NodeSays]) -> frozenset[int]:
        """The nodes that have voted less often than was known before."""
        return frozenset(
            number
            for number, node in found.items()
            if node.state == "voting"
            and node.identity == self._votes[number].identity
            and node.votes < self._votes[number].votes
        )

    def remember(self, found: Mapping[int, NodeSays]) -> None:
        """By what each says of itself, and by what others were told of it."""
        for number, node in found.items():
            said = [Votes(node.identity, node.votes), *(other.witness(number) for other in found.values())]
            self._votes[number] = max(self._votes[number], *said)

    async def tell(self, view: View) -> None:
        """Tell the nodes now and then: a lock service that starts later has not seen it."""
        now_us = self._clock.monotonic_us()
        if now_us < self._due_us or self._votes == self._told:
            return
        self._due_us = now_us + TELL_EVERY_US
        self._told = list(self._votes)
        parts = [
            part
            for number, votes in enumerate(self._votes)
            for part in (witness_field(number), votes.identity, votes.votes)
        ]
        asked = {
            number: self._nodes[number].run(WITNESS, [self._keys.node], view.digest, view.identity(number), *parts)
            for number in view.voters
        }
        await poll(asked, TELL_WITHIN_S)
