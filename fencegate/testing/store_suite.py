"""What every lock store must do: subclass `StoreSuite`, give it a fixture `open_store`, and pytest runs it all.

class TestMyStore(StoreSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_() -> Store:
            return MyStore(tmp_path)
        return open_

Each call opens the same data again. Tests of what a store declares not to do are skipped. For durability against
kill -9, and for the refusal of a second process, give a fixture `opening` too.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Change, Conflict, Store, TooLate
from fencegate.testing.change_log_suite import ChangeLogSuite, first_answer
from fencegate.testing.committing import OpenStore, by, gather_log, put, write
from fencegate.testing.engine_suite import EngineSuite
from fencegate.testing.store_life_suite import StoreLifeSuite
from fencegate.testing.terms_suite import TermsSuite

HOSTILE_KEYS = (
    "a", "a ", " a", "A", "a/", "a/b", "a0", "aa", "ab", "%", "_", "*", "?", "{tag}", "[a]", "it's", 'say "x"',
    "';DROP TABLE entries;--", "back\\slash", "\\u0041", "123", "1e3", "null", "\u00e9", "e\u0301", "\u0663",
    "\u65e5\u672c", "\ufffd", "\uffff", "\U00010000", "\U0001f512", "x" * 1024,
)  # fmt: skip


class StoreSuite(ChangeLogSuite, StoreLifeSuite, EngineSuite, TermsSuite):
    """The rules of the store contract, as tests; and those of the engine, which must hold over any store."""

    @pytest.fixture
    async def store(self, open_store: OpenStore) -> AsyncIterator[Store]:
        store = await open_store()
        yield store
        await store.close()

    # --- load and commit -------------------------------------------------------------------------------------------

    async def test_what_was_committed_is_loaded_as_it_was(self, store: Store) -> None:
        value = '{"text":"é 🔒 \\u0000 \\" \\\\ \n","n":9223372036854775807}'.encode()
        change = put("k", value=value)
        await write(store, change)
        found = await store.load(["k", "absent"])
        assert dict(found) == {"k": (change.version, value)}
        assert dict(await store.load([])) == {}

    async def test_an_expected_absence_conflicts_with_what_is_there(self, store: Store) -> None:
        first = put("k", value=b'"first"')
        await write(store, first)
        with pytest.raises(Conflict):
            await write(store, put("k", value=b'"second"'))
        assert (await store.load(["k"]))["k"] == (first.version, b'"first"')

    async def test_an_expected_version_conflicts_with_another_and_with_absence(self, store: Store) -> None:
        with pytest.raises(Conflict):
            await write(store, put("k", "never"))
        first, second = put("k"), put("k")
        await write(store, first)
        await write(store, put("k", first.version, b'"second"'))
        with pytest.raises(Conflict):
            await write(store, put("k", first.version, b'"third"'))
        with pytest.raises(Conflict):
            await write(store, put("k", second.version))
        assert (await store.load(["k"]))["k"].value == b'"second"'

    async def test_a_version_from_before_a_delete_never_fits_again(self, store: Store) -> None:
        first = put("k")
        await write(store, first)
        await write(store, Change("k", first.version, "gone"))
        assert "k" not in await store.load(["k"])
        for stale in (put("k", first.version), Change("k", first.version, "again")):
            with pytest.raises(Conflict):
                await write(store, stale)
        await write(store, put("k"))
        with pytest.raises(Conflict):
            await write(store, put("k", first.version))

    async def test_a_commit_is_all_or_nothing(self, store: Store) -> None:
        if not store.capabilities.several_keys:
            pytest.skip("this store commits single keys")
        there = put("there")
        await write(store, there)
        stream = store.changes(None)
        await first_answer(stream)
        with pytest.raises(Conflict):
            await write(store, put("one"), Change("there", there.version, "x"), put("two", "wrong"))
        assert set(await store.load(["one", "two", "there"])) == {"there"}
        await write(store, put("one"), Change("there", there.version, "x"), put("two"))
        assert set(await store.load(["one", "two", "there"])) == {"one", "two"}
        assert [entry.key for entry in await gather_log(stream, 1)] == ["one"]  # the refused commit logged nothing

    async def test_compare_only_holds_the_commit_to_what_was_seen_and_writes_nothing(self, store: Store) -> None:
        if not store.capabilities.several_keys:
            pytest.skip("this store commits single keys")
        seen = put("seen", value=b'"as it was"')
        await write(store, seen)
        await write(store, put("k"), Change("seen", seen.version, compare_only=True))
        await write(store, put("k2"), Change("absent", None, compare_only=True))
        assert (await store.load(["seen"]))["seen"] == (seen.version, b'"as it was"')
        assert "absent" not in await store.load(["absent"])
        with pytest.raises(Conflict):
            await write(store, put("k3"), Change("seen", "other", compare_only=True))
        with pytest.raises(Conflict):
            await write(store, put("k3"), Change("seen", None, compare_only=True))
        with pytest.raises(Conflict):
            await write(store, put("k3"), Change("absent", "other", compare_only=True))
        assert "k3" not in await store.load(["k3"])

    async def test_a_commit_that_arrives_late_is_refused_and_writes_nothing(self, store: Store) -> None:
        if not store.capabilities.clock:
            pytest.skip("this store has no clock")
        with pytest.raises(TooLate):
            await store.commit([put("k")], [("k", b"{}")], by(store, -1_000_000))
        assert "k" not in await store.load(["k"])
        await write(store, put("k"))

    async def test_of_many_commits_on_one_version_exactly_one_wins(self, store: Store) -> None:
        last = put("k")
        await write(store, last)
        for _ in range(10):
            rivals = [put("k", last.version) for _ in range(8)]
            results = await asyncio.gather(*(write(store, rival) for rival in rivals), return_exceptions=True)
            (last,) = [rival for rival, result in zip(rivals, results, strict=True) if result is None]
            assert sum(isinstance(result, Conflict) for result in results) == 7
            assert (await store.load(["k"]))["k"].version == last.version

    async def test_in_a_group_the_bad_commits_fail_alone(self, store: Store) -> None:
        good = [put(f"good-{number}") for number in range(20)]
        bad = [put(f"bad-{number}", "wrong") for number in range(20)]
        late = store.commit([put("late")], [], by(store, -1_000_000)) if store.capabilities.clock else asyncio.sleep(0)
        mixed = [change for pair in zip(good, bad, strict=True) for change in pair]
        results = await asyncio.gather(late, *(write(store, change) for change in mixed), return_exceptions=True)
        assert [type(result) for result in results[1:]] == [type(None), Conflict] * 20
        found = await store.load([change.key for change in mixed])
        assert set(found) == {change.key for change in good}

    async def test_commits_that_build_on_each_other_in_one_group_keep_their_order(self, store: Store) -> None:
        versions = [SYSTEM.random_id() for _ in range(30)]
        chain = [
            store.commit([Change("k", before, version, b'"%s"' % version.encode())], [], by(store))
            for before, version in zip([None, *versions], versions, strict=False)
        ]
        chain.append(store.commit([Change("k", versions[-1], "gone")], [], by(store)))
        chain.append(store.commit([Change("k", None, "last", b'"last"')], [], by(store)))
        results = await asyncio.gather(*chain, return_exceptions=True)
        done = results.index(next((r for r in results if r is not None), None)) if any(results) else len(results)
        assert all(isinstance(result, Conflict) for result in results[done:])
        last = [*versions, None, "last"][done - 1]
        found = (await store.load(["k"])).get("k")
        assert (found.version if found else None) == last

    # --- what is kept for a time -----------------------------------------------------------------------------------

    async def test_an_entry_is_kept_until_its_time_and_when_it_is_written_without_one(self, store: Store) -> None:
        soon, late = by(store, 2_000_000), by(store, 600_000_000)
        short, long, lasting = put("short", keep_until_us=soon), put("long", keep_until_us=late), put("lasting")
        renewed = put("renewed", keep_until_us=soon)
        for change in (short, renewed, long, lasting):
            await write(store, change)
        await write(store, put("renewed", renewed.version))
        assert set(await store.load(["short", "long", "lasting"])) == {"short", "long", "lasting"}
        await asyncio.sleep(2.1)
        for number in range(150):
            await write(store, put(f"other-{number}"))
            if "short" not in await store.load(["short"]):
                break
        else:
            pytest.fail("what is past its time is never forgotten")
        assert set(await store.load(["long", "lasting", "renewed"])) == {"long", "lasting", "renewed"}
        await write(store, put("short"))  # it is absent, and can be written as such

    async def test_many_entries_past_their_time_are_forgotten_though_an_older_one_is_kept(self, store: Store) -> None:
        late = by(store, 600_000_000)
        await write(store, put("long", keep_until_us=late))
        for group in range(10):
            soon = by(store, 1)
            many = [put(f"many/{group}-{number:03d}", keep_until_us=soon) for number in range(200)]
            if store.capabilities.several_keys:
                await write(store, *many)
            else:
                await asyncio.gather(*(write(store, change) for change in many[:20]))
        for number in range(600):
            await write(store, put(f"other-{number}"))
            if not await store.scan("many/", "", 1):
                break
        else:
            pytest.fail("what is past its time piles up")
        assert "long" in await store.load(["long"])

    # --- scan ------------------------------------------------------------------------------------------------------

    async def test_keys_are_told_apart_and_scanned_in_the_order_of_their_bytes(self, store: Store) -> None:
        changes = {f"p/{key}": put(f"p/{key}", value=b'"%d"' % number) for number, key in enumerate(HOSTILE_KEYS)}
        await asyncio.gather(*(write(store, change) for change in changes.values()))
        await asyncio.gather(
            *(write(store, put(outside)) for outside in ("o/x", "p", "p.", "p0", "q/a", "p\U0001f512"))
        )
        expected = sorted(changes, key=str.encode)
        everything = await store.scan("p/", "", 1000)
        assert [key for key, _ in everything] == expected
        for key, entry in everything:
            assert entry == (changes[key].version, changes[key].value)
        assert dict(await store.load(expected)) == dict(everything)

    @pytest.mark.parametrize("limit", [1, 3, 1000])
    async def test_a_scan_page_by_page_finds_everything_once(self, store: Store, limit: int) -> None:
        keys = [f"p/{key}" for key in HOSTILE_KEYS]
        await asyncio.gather(*(write(store, put(key)) for key in keys))
        found: list[str] = []
        while page := await store.scan("p/", found[-1] if found else "", limit):
            assert len(page) <= limit
            found += [key for key, _ in page]
        assert found == sorted(keys, key=str.encode)

    async def test_a_scan_goes_on_after_a_key_that_is_gone_and_stays_in_its_prefix(self, store: Store) -> None:
        for key in ("p/a", "p/c", "q/a", "o/z"):
            await write(store, put(key))
        assert [key for key, _ in await store.scan("p/", "p/b", 10)] == ["p/c"]
        assert [key for key, _ in await store.scan("p/", "a", 10)] == ["p/a", "p/c"]
        assert [key for key, _ in await store.scan("p/", "z", 10)] == []
        assert [key for key, _ in await store.scan("", "", 10)] == ["o/z", "p/a", "p/c", "q/a"]
