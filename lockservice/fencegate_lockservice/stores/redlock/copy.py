"""Brings every register from a majority of the nodes to one that lost its data and does not vote yet."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.members import View
from fencegate_lockservice.stores.redlock.node import COPY, NAMES, READ, Node, Part
from fencegate_lockservice.stores.redlock.polls import poll

PAGE = 200
READ_AT_ONCE = 16
AT_ONCE_BYTES = 4_000_000
WITHIN_S = 5.0


class Held(NamedTuple):
    """A register, as nodes hold it: the highest promise, and what was accepted at the highest ballot."""

    promised: bytes = b""
    ballot: bytes = b""
    value: bytes = b""
    hint: bytes = b""

    def merged(self, other: "Held") -> "Held":
        newer = max(self, other, key=lambda held: held.ballot)
        return newer._replace(promised=max(self.promised, other.promised))


async def names_page(
    nodes: Sequence[Node], keys: Keys, view: View, lower: bytes, upper: bytes, limit: int
) -> tuple[list[bytes], bytes | None]:
    """The names of registers that a majority knows of, in order, and up to which name all of them are there (None when
    there are no more). Unavailable when a majority does not answer."""
    majority = len(nodes) // 2 + 1
    asked = {
        number: nodes[number].vote(
            NAMES, [keys.node, keys.index], view.digest, view.identity(number), lower, upper, limit
        )
        for number in view.voters
    }
    answers = await poll(asked, WITHIN_S, lambda heard: sum(a[0] == b"found" for a in heard.values()) >= majority)
    pages = [answer[1] for answer in answers.values() if answer[0] == b"found"]
    if len(pages) < majority:
        raise Unavailable("a majority of the nodes does not tell what it holds")
    ends = [page[-1] for page in pages if len(page) >= limit]
    end = min(ends) if ends else None
    names = sorted({name for page in pages for name in page if end is None or name <= end})
    return names, end


async def copy(nodes: Sequence[Node], keys: Keys, view: View, target: int, identity: str) -> None:
    """All registers, page by page. Unavailable when it can't be finished; begin anew then."""
    lower = b"-"
    while True:
        names, end = await names_page(nodes, keys, view, lower, b"+", PAGE)
        await _copy_some(nodes, keys, view, target, identity, [name.decode() for name in names])
        if end is None:
            return
        lower = b"(" + end


async def _copy_some(
    nodes: Sequence[Node], keys: Keys, view: View, target: int, identity: str, names: list[str]
) -> None:
    for start in range(0, len(names), READ_AT_ONCE):
        some = names[start : start + READ_AT_ONCE]
        for copied in slices(list(zip(some, await _held(nodes, keys, view, some), strict=True))):
            registers = [keys.register(name) for name, _ in copied]
            parts: list[Part] = [part for name, held in copied for part in (name, *held)]
            asked = nodes[target].run(COPY, [keys.node, keys.index, *registers], identity, *parts)
            answers = await poll({target: asked}, WITHIN_S)
            if not answers or answers[target][0] != b"copied":
                raise Unavailable(f"{nodes[target].seat.name} could not take a copy")


def slices(registers: Sequence[tuple[str, Held]]) -> Iterator[list[tuple[str, Held]]]:
    """All of them, in order, in parts that a node takes at once."""
    some: list[tuple[str, Held]] = []
    size = 0
    for name, held in registers:
        some.append((name, held))
        size += len(held.value)
        if size > AT_ONCE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


async def _held(nodes: Sequence[Node], keys: Keys, view: View, names: Sequence[str]) -> list[Held]:
    majority = len(nodes) // 2 + 1
    registers = [keys.register(name) for name in names]
    asked = {
        number: nodes[number].vote(READ, [keys.node, *registers], view.digest, view.identity(number))
        for number in view.voters
    }
    answers = await poll(asked, WITHIN_S, lambda heard: sum(a[0] == b"found" for a in heard.values()) >= majority)
    pages = [answer[1:] for answer in answers.values() if answer[0] == b"found"]
    if len(pages) < majority:
        raise Unavailable("a majority of the nodes does not answer")
    held = [Held()] * len(names)
    for page in pages:
        for place in range(len(names)):
            held[place] = held[place].merged(Held(*page[place * 4 : place * 4 + 4]))
    return held
