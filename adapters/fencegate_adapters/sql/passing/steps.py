"""Statements that are asked for one by one, and the two ways to carry them out."""

import functools
import re
from collections.abc import Awaitable, Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

Row = tuple[Any, ...]
Values = Mapping[str, Any]
T = TypeVar("T")


class Ask(NamedTuple):
    """One statement; its values are written `:name` in it. It is answered by its rows, or, where it has none, by one
    that tells how many it was about."""

    statement: str
    values: Values = MappingProxyType({})


Steps = Generator[Ask, list[Row], T]


class ClaimFirst(Exception):
    """The snapshot of this transaction is from before the fence was raised, and what an older holder committed since
    is not in it: roll back, claim in a transaction of its own, and begin again."""


def drive(steps: Steps[T], run: Callable[[Ask], list[Row]]) -> T:
    try:
        ask = next(steps)
        while True:
            try:
                rows = run(ask)
            except BaseException:
                steps.close()
                raise
            ask = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


async def drive_async(steps: Steps[T], run: Callable[[Ask], Awaitable[list[Row]]]) -> T:
    try:
        ask = next(steps)
        while True:
            try:
                rows = await run(ask)
            except BaseException:
                steps.close()
                raise
            ask = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


_NAME = re.compile(r"(?<![:\w]):([a-z]+)")


@functools.cache
def in_pyformat(statement: str) -> str:
    """The same statement as most drivers read it: `%(name)s`."""
    return _NAME.sub(r"%(\1)s", statement.replace("%", "%%"))


def only_named(ask: Ask) -> dict[str, Any]:
    """The values that the statement names; some drivers don't take more."""
    return {name: ask.values[name] for name in set(_NAME.findall(ask.statement))}
