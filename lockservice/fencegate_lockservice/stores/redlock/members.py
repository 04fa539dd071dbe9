"""Who votes: the nodes of a redlock store, by identities that they lose when they lose their data.

A node that forgot its promises must not vote: a majority that counts on it could be two different ones. So each node
has an identity, made by chance, and keeps the identities of all (`Config`); every script carries both, and a node
refuses one that does not fit. A node without its identity, or that voted less often than others have seen (it came back
from a backup), is made a new one: it gets a new identity, a majority of the others is told of it (from then on they
refuse whoever counts on the old one), and only after that it copies every register from a majority of the others. Then
it votes.

The first start needs every node: a blank node may be a new one, or one that lost everything.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Unavailable

FORMAT = "1"


class Config(msgspec.Struct, frozen=True):
    """All seats by name, and who sits there. Of two configurations the later identity of each seat is right."""

    deployment: str
    seats: tuple[str, ...]
    identities: tuple[str, ...]

    @property
    def text(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text).hexdigest()[:32]

    def merged(self, other: "Config") -> "Config":
        pairs = zip(self.identities, other.identities, strict=True)
        return Config(self.deployment, self.seats, tuple(max(pair) for pair in pairs))

    def seated(self, number: int, identity: str) -> "Config":
        identities = [*self.identities]
        identities[number] = identity
        return Config(self.deployment, self.seats, tuple(identities))


def identity(now_us: int, above: str, chance: str) -> str:
    """An identity that comes after `above`."""
    return f"{max(now_us, int(above.partition('.')[0] or 0) + 1):016d}.{chance}"


@dataclass(frozen=True, slots=True)
class NodeSays:
    """What a node says of itself; of a blank one, nothing."""

    state: str = ""
    """'forming' before its first vote, 'voting', or 'copying' before its first vote after it lost its data."""
    seat: str = ""
    identity: str = ""
    deployment: str = ""
    seats: tuple[str, ...] = ()
    config: Config | None = None
    votes: int = 0
    """How often it voted: a node that voted less often than before was restored from a backup."""
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return self.fields.get("digest", "")

    def witness(self, number: int) -> "Votes":
        """What this node was told of the votes of another."""
        identity, _, votes = self.fields.get(witness_field(number), "").partition(" ")
        return Votes(identity, int(votes or 0))


class Votes(NamedTuple):
    """How often a node has voted, under which identity. Of two, the higher is right."""

    identity: str = ""
    votes: int = 0


def witness_field(number: int) -> str:
    return f"witness:{number}"


def node_of(answer: Sequence[bytes]) -> NodeSays:
    """Read a hash of a node. UnsafeConfiguration when it is of another kind."""
    if not answer:
        return NodeSays()
    fields = {name.decode(): value.decode() for name, value in zip(answer[::2], answer[1::2], strict=True)}
    if fields.get("format") != FORMAT:
        raise UnsafeConfiguration(f"a node holds locks of format {fields.get('format')!r}; this version knows {FORMAT}")
    config = msgspec.json.decode(fields["config"], type=Config) if fields.get("config") else None
    return NodeSays(
        fields.get("state", ""),
        fields.get("seat", ""),
        fields.get("identity", ""),
        fields.get("deployment", ""),
        msgspec.json.decode(fields.get("seats", "[]"), type=tuple[str, ...]),
        config,
        int(fields.get("votes", 0)),
        fields,
    )


def fields_of(seats: Sequence[str], number: int, deployment: str, identity: str, state: str) -> dict[str, Any]:
    """The hash of a node that begins."""
    return {
        "format": FORMAT,
        "state": state,
        "seat": seats[number],
        "identity": identity,
        "deployment": deployment,
        "seats": msgspec.json.encode(seats),
        "config": "",
        "digest": "",
        "votes": 0,
    }


@dataclass(frozen=True, slots=True)
class View:
    """Who votes now, as far as this lock service knows."""

    config: Config
    digest: str
    voters: frozenset[int]

    def identity(self, number: int) -> str:
        return self.config.identities[number]


@dataclass(frozen=True, slots=True)
class Findings:
    """What has to be done so that all nodes vote."""

    config: Config
    voters: frozenset[int]
    behind: tuple[int, ...]
    """They vote, and have to be told of another member's new identity."""
    ready: tuple[int, ...]
    """They have never voted, and may begin to."""
    blank: tuple[int, ...]
    """They lost their data, and have to copy that of the others first."""


def strangers(seats: Sequence[str], found: Mapping[int, NodeSays]) -> dict[int, str]:
    """The nodes that belong to something else than the majority does, and why. None when there is no majority."""
    strange: dict[int, str] = {}
    for number, node in found.items():
        try:
            _belongs(seats, number, node)
        except UnsafeConfiguration as error:
            strange[number] = str(error)
    voting = {number: node for number, node in found.items() if node.state == "voting" and number not in strange}
    stores = [node.deployment for node in voting.values()]
    for number, node in voting.items():
        if any(stores.count(other) > len(seats) // 2 for other in stores if other != node.deployment):
            strange[number] = f"{seats[number]} belongs to another store than most nodes do; empty it"
    return strange


def judge(
    seats: Sequence[str], found: Mapping[int, NodeSays], forgetful: frozenset[int] = frozenset()
) -> Findings | None:
    """What the nodes that answered say together; None when all are new and a store can be made of them.

    Raises Unavailable when too few of them answer, and UnsafeConfiguration when they belong to something else.
    """
    for number, node in found.items():
        _belongs(seats, number, node)
    voting = {number: node for number, node in found.items() if node.state == "voting" and number not in forgetful}
    _one_store(seats, voting)
    if not voting and all(node.state in ("", "forming") for node in found.values()):
        if len(found) == len(seats):
            return None
        missing = ", ".join(name for number, name in enumerate(seats) if number not in found)
        raise Unavailable(f"the first start needs every node, and these don't answer: {missing}")
    configs = [node.config for node in voting.values() if node.config is not None]
    if not configs:
        raise Unavailable(_too_few(seats, found, ()))
    config = configs[0]
    for other in configs[1:]:
        config = config.merged(other)
    voters = frozenset(number for number, node in voting.items() if node.identity == config.identities[number])
    ready = {
        number
        for number, node in found.items()
        if node.state == "forming"
        and (node.deployment, node.identity) == (config.deployment, config.identities[number])
    }
    if len(voters) + len(ready) < len(seats) // 2 + 1:  # fewer may not know of the latest configuration
        raise Unavailable(_too_few(seats, found, voters))
    return Findings(
        config,
        voters,
        tuple(number for number in sorted(voters) if voting[number].digest != config.digest),
        tuple(sorted(ready)),
        tuple(number for number in sorted(found) if number not in voters and number not in ready),
    )


def _belongs(seats: Sequence[str], number: int, node: NodeSays) -> None:
    if not node.state:
        return
    if node.seats != tuple(seats):
        raise UnsafeConfiguration(
            f"{seats[number]} belongs to the nodes {', '.join(node.seats)}; name the same nodes in every URL, by the"
            " same addresses (or by the same names=)"
        )
    if node.seat != seats[number]:
        raise UnsafeConfiguration(f"{seats[number]} and {node.seat} are the same server; a node counts once")


def _one_store(seats: Sequence[str], voting: Mapping[int, NodeSays]) -> None:
    stores: dict[str, list[str]] = {}
    for number, node in sorted(voting.items()):
        stores.setdefault(node.deployment, []).append(seats[number])
    if len(stores) > 1:
        groups = " and ".join(", ".join(names) for names in stores.values())
        raise UnsafeConfiguration(
            f"the nodes belong to different stores: {groups}; empty those that hold an old one, such as a node that was"
            " restored from before all were emptied"
        )


def _too_few(seats: Sequence[str], found: Mapping[int, NodeSays], voting: Collection[int]) -> str:
    silent = [name for number, name in enumerate(seats) if number not in found]
    blank = [seats[number] for number in sorted(found) if number not in voting]
    text = f"only {len(voting)} of {len(seats)} nodes can vote, and it takes a majority"
    if silent:
        text += f"; no answer from {', '.join(silent)}"
    if blank:
        text += f"; without their data: {', '.join(blank)}"
    if not silent:
        text += " (a majority lost its data: bring it back, or empty all nodes to begin anew)"
    return text
