"""Leader election and the decorators as type checkers see them. mypy reads this file; nothing runs it."""

import threading
from typing import assert_type

import fencegate.sync
from fencegate import Lead, Leader, Lease, Observer, Term, Token, connect


async def async_client() -> None:
    locks = connect()
    assert_type(locks.lead("a"), Lead)
    async with locks.lead(
        "a", ttl=15, wait=None, metadata={"address": "here"}, on_elected=tell, on_deposed=tell_async, priority=1
    ) as term:
        assert_type(term, Term)
        assert_type(term.token, Token)
        assert_type(term.lease, Lease)
        assert_type(term.headers(), dict[str, str])
        assert_type(term.lost.is_set(), bool)
    async for each in locks.terms("a", ttl=15):
        assert_type(each, Term)
    assert_type(locks.observe("a"), Observer)
    async for leader in locks.observe("a"):
        assert_type(leader, Leader | None)

    @locks.once("cron:report", keep=600)
    async def report(day: str) -> int:
        return len(day)

    assert_type(await report("monday"), int | None)

    @locks.guarded("inventory:{sku}", ttl=10)
    async def reserve(sku: str, lease: Lease | None = None) -> int:
        return len(sku)

    assert_type(await reserve("a"), int)


def tell(term: Term) -> None:
    term.ensure_led()


async def tell_async(term: Term) -> None:
    term.ensure_led()


def sync_client() -> None:
    locks = fencegate.sync.connect()
    with locks.lead("a", ttl=15, wait=3) as term:
        assert_type(term, fencegate.sync.Term)
        assert_type(term.lease, fencegate.sync.Lease)
        assert_type(term.lost, threading.Event)
    for each in locks.terms("a"):
        assert_type(each, fencegate.sync.Term)
    for leader in locks.observe("a"):
        assert_type(leader, Leader | None)

    @locks.once("cron:report")
    def report(day: str) -> int:
        return len(day)

    assert_type(report("monday"), int | None)

    @locks.guarded("inventory:{sku}")
    def reserve(sku: str) -> int:
        return len(sku)

    assert_type(reserve("a"), int)
