"""What a store remembers of the routes that lead to it, so that no lock key is ever served from two stores.

Each store has an identity of its own, made by chance when it is first used, and the whole table of routes by these
identities (ADR 15). Whoever opens stores compares: two services that share any store then agree on where every key is,
whatever their URLs look like. The table is written once; only `accept` changes it, when what moves is free.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

import msgspec

from fencegate.clock import Clock
from fencegate.core.errors import StoreUnavailable, UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Change, Conflict, Store, TooLate, Unavailable
from fencegate_lockservice.routes import EVERYTHING, Routes, without_secrets

ENTRY = "route/self"
TRIES = 20
LAND_WITHIN_US = 10_000_000

log = logging.getLogger("fencegate.routes")


class Record(msgspec.Struct, frozen=True):
    """What a store remembers: who it is, and which prefix belongs to which store ('*' for all others)."""

    store: str
    routes: dict[str, str] = {}


class Remembered(msgspec.Struct, frozen=True):
    """A record as it was found, None when there was none."""

    version: str | None = None
    record: Record | None = None


Stores = Mapping[str, Store]
"""By URL."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


async def remembered(store: Store) -> Remembered:
    """What this store remembers now. Unavailable when it can't be reached."""
    found = (await store.load([ENTRY])).get(ENTRY)
    if found is None:
        return Remembered()
    try:
        return Remembered(found.version, _decode(found.value))
    except msgspec.MsgspecError:
        raise UnsafeConfiguration(
            f"the store {store.name} remembers its routes in a way that this version can't read; use a newer one"
        ) from None


async def agree(stores: Stores, routes: Routes, clock: Clock) -> dict[str, Record]:
    """See that all stores remember these routes, writing them where nothing is remembered yet; gives their records.

    UnsafeConfiguration when one of them remembers others.
    """
    for attempt in range(TRIES):
        try:
            found = await identified(stores, clock)
            wanted = table_of(found, routes)
            check(found, wanted)
            return await _write(stores, found, wanted, clock)
        except (Conflict, TooLate, Ambiguous):  # others start too, or nobody knows: look again
            await asyncio.sleep(clock.jitter() * min(0.5, 0.01 * 2**attempt))
        except Unavailable as error:
            raise StoreUnavailable(f"the routes can't be read from the store: {error}") from None
    raise StoreUnavailable("the routes could not be written: others were faster each time, or the store is unsure")


async def identified(stores: Stores, clock: Clock) -> dict[str, Remembered]:
    """What each store remembers, by URL; one that has no identity yet is given one."""
    found = {}
    for url, store in stores.items():
        found[url] = await remembered(store)
        if found[url].record is None:
            found[url] = await put(store, found[url], Record(clock.random_id(8)), clock)
    check_distinct(found)
    return found


def check_distinct(found: Mapping[str, Remembered]) -> None:
    """UnsafeConfiguration when two of the URLs lead to one store."""
    by_id: dict[str, str] = {}
    for url, each in found.items():
        other = by_id.setdefault(_record(each).store, url)
        if other != url:
            raise UnsafeConfiguration(
                f"store: {without_secrets(other)} and {without_secrets(url)} are one store, or one is a copy of the "
                "other; name it by one URL, and empty a copy before you use it"
            )


def table_of(found: Mapping[str, Remembered], routes: Routes) -> dict[str, str]:
    """The routes by the identities of the stores."""
    return {prefix or EVERYTHING: _record(found[url]).store for prefix, url in routes.urls.items()}


def check(found: Mapping[str, Remembered], wanted: Mapping[str, str]) -> None:
    """UnsafeConfiguration when a store remembers other routes than these."""
    names = {_record(each).store: without_secrets(url) for url, each in found.items()}
    for url, each in found.items():
        recorded = _record(each).routes
        if recorded and recorded != wanted:
            raise UnsafeConfiguration(_refusal(without_secrets(url), _told(recorded, names), _told(wanted, names)))


def _refusal(where: str, recorded: str, wanted: str) -> str:
    return (
        f"store: {where} remembers other routes than are configured. Remembered: {recorded}. Configured: {wanted}. "
        "A lock that is held in one store while another serves its key would have two holders, so nothing was opened. "
        "If you mean to change the routes, stop every replica and run `fencegate doctor --accept-routes` with the new "
        "ones; it looks whether what moves is free"
    )


def _told(table: Mapping[str, str], names: Mapping[str, str]) -> str:
    """For people: a store that is not among those given has no name but its identity."""
    return ", ".join(
        f"{prefix!r} in {names[store]} ({store})" if store in names else f"{prefix!r} in another store ({store})"
        for prefix, store in table.items()
    )


async def write(stores: Stores, table: Mapping[str, str], clock: Clock) -> None:
    """Have every store remember this table, whatever it remembered."""
    for store in stores.values():
        found = await remembered(store)
        if _record(found).routes != table:
            await put(store, found, Record(_record(found).store, dict(table)), clock)


async def _write(
    stores: Stores, found: Mapping[str, Remembered], table: Mapping[str, str], clock: Clock
) -> dict[str, Record]:
    records = {url: Record(_record(each).store, dict(table)) for url, each in found.items()}
    for url, each in found.items():
        if not _record(each).routes:
            await put(stores[url], each, records[url], clock)
    return records


async def put(store: Store, found: Remembered, record: Record, clock: Clock) -> Remembered:
    """Write the record where `found` was found; Conflict when another is there by now."""
    now = store.now()
    not_after_us = (now.latest if now is not None else clock.now_us()) + LAND_WITHIN_US
    version = clock.random_id(8)
    await store.commit([Change(ENTRY, found.version, version, _encode(record))], (), not_after_us)
    return Remembered(version, record)


def _record(found: Remembered) -> Record:
    assert found.record is not None
    return found.record


def unknown_stores(found: Mapping[str, Remembered], gone: Collection[str]) -> set[str]:
    """The identities that some of these remember, and that none of them has."""
    ours = {_record(each).store for each in found.values()}
    return {store for each in found.values() for store in _record(each).routes.values()} - ours - set(gone)
