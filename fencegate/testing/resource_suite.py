"""What every adapter must do: subclass `ResourceSuite`, give it a fixture `subject`, and pytest runs it all.

>>> class TestMyAdapter(ResourceSuite):
...     @pytest.fixture
...     def subject(self, tmp_path: Path) -> Subject:
...         return MySubject(tmp_path)

The tests are coroutines: set `asyncio_mode = "auto"` of pytest-asyncio, or mark the class.
"""

import asyncio
import contextlib
import itertools
import unicodedata
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

import pytest

from fencegate.clock import ManualClock
from fencegate.core.errors import NotFound, PreconditionFailed, StaleToken, UnsafeConfiguration
from fencegate.core.ports import Conditions, Key, Resource, Seen, ShadowRefusal
from fencegate.core.token import MAX_TOKEN

Mode = Literal["enforce", "shadow"]
PER_KEY = "{resource}:{key}"
JOB = "job:rebuild"

HOSTILE_KEYS = (
    "it's", 'say "x"', "';DROP TABLE rows;--", "100%", "%41", "a_b", "axb", "*", "?", "{tag}", "[a]", "back\\slash",
    "a", "a ", " a", "A", "a.", "-rf", "~", "$HOME", "con", "emoji 🔒", "x" * 200,
    unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"),
)  # fmt: skip


class Subject(Protocol):
    """One adapter under test, over one set of data."""

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> Resource:
        """A new adapter, not yet open, over the same data each time."""

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        """Store `text` under `key`."""

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        """What is stored under `key`; None when nothing is."""


@contextlib.asynccontextmanager
async def opened(resource: Resource) -> AsyncIterator[Resource]:
    await resource.open()
    try:
        yield resource
    finally:
        await resource.close()


class ResourceSuite:
    """The rules of the resource contract, as tests."""

    # --- the check -------------------------------------------------------------------------------------------------

    async def test_equal_and_higher_tokens_are_accepted(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            for token, text in ((7, "first"), (7, "again"), (8, "higher")):
                seen = await subject.write(resource, ("k",), "s:k", text, token)
                assert seen.mark == token
                assert seen.shadow is None
                assert await subject.read(resource, ("k",), "s:k") == text
            assert await resource.mark("s:k") == 8

    async def test_a_lower_token_is_refused_and_nothing_is_written(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "new", 8)
            with pytest.raises(StaleToken) as refused:
                await subject.write(resource, ("k",), "s:k", "old", 7)
            assert (refused.value.token, refused.value.highest) == (7, 8)
            assert await subject.read(resource, ("k",), "s:k") == "new"
            assert await resource.mark("s:k") == 8

    async def test_tokens_above_2_to_the_53_compare_exactly(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "max", MAX_TOKEN)
            with pytest.raises(StaleToken) as refused:
                await subject.write(resource, ("k",), "s:k", "below", MAX_TOKEN - 1)
            assert (refused.value.token, refused.value.highest) == (MAX_TOKEN - 1, MAX_TOKEN)
            await subject.write(resource, ("k",), "s:k", "equal", MAX_TOKEN)
            assert await resource.mark("s:k") == MAX_TOKEN

    async def test_a_fence_that_has_seen_nothing_has_the_mark_zero(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            assert await resource.mark("s:never") == 0
            assert await subject.read(resource, ("never",), "s:never") is None

    async def test_it_says_what_it_guarantees(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            assert resource.guarantee.kind in ("atomic", "best-effort")
            assert resource.guarantee.durability

    # --- claims and reads ------------------------------------------------------------------------------------------

    async def test_a_claim_refuses_the_older_holder_before_anything_is_written(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "of 7", 7)
            assert (await resource.claim("s:k", 8)).mark == 8
            with pytest.raises(StaleToken):
                await subject.write(resource, ("k",), "s:k", "late", 7)
            with pytest.raises(StaleToken):
                await resource.claim("s:k", 7)
            assert await subject.read(resource, ("k",), "s:k") == "of 7"

    async def test_a_fenced_read_raises_the_mark_and_a_plain_one_does_not(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "text", 7)
            assert await subject.read(resource, ("k",), "s:k") == "text"
            assert await resource.mark("s:k") == 7
            assert await subject.read(resource, ("k",), "s:k", 9) == "text"
            assert await resource.mark("s:k") == 9
            with pytest.raises(StaleToken):
                await subject.write(resource, ("k",), "s:k", "late", 8)
            with pytest.raises(StaleToken):
                await subject.read(resource, ("k",), "s:k", 8)

    async def test_a_fenced_read_of_nothing_raises_the_mark_too(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            assert await subject.read(resource, ("k",), "s:k", 9) is None
            with pytest.raises(StaleToken):
                await subject.write(resource, ("k",), "s:k", "late", 8)

    # --- deletes ---------------------------------------------------------------------------------------------------

    async def test_a_delete_keeps_the_mark_so_that_a_stale_create_is_refused(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "text", 7)
            await resource.delete(("k",), "s:k", 8)
            assert await subject.read(resource, ("k",), "s:k") is None
            with pytest.raises(StaleToken):
                await subject.write(resource, ("k",), "s:k", "risen", 7)
            assert await subject.read(resource, ("k",), "s:k") is None
            await subject.write(resource, ("k",), "s:k", "new", 8)
            assert await subject.read(resource, ("k",), "s:k") == "new"

    async def test_a_stale_delete_is_refused(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "text", 8)
            with pytest.raises(StaleToken):
                await resource.delete(("k",), "s:k", 7)
            assert await subject.read(resource, ("k",), "s:k") == "text"

    async def test_a_delete_of_nothing_is_not_found_and_raises_the_mark(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            with pytest.raises(NotFound):
                await resource.delete(("k",), "s:k", 8)
            assert await resource.mark("s:k") == 8
            with pytest.raises(StaleToken):
                await resource.delete(("k",), "s:k", 7)

    async def test_conditions_are_judged_after_the_token_and_the_mark_stays_raised(self, subject: Subject) -> None:
        wrong = Conditions(if_match=("no-such-etag",))
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "text", 8)
            with pytest.raises(StaleToken):
                await resource.delete(("k",), "s:k", 7, wrong)
            with pytest.raises(PreconditionFailed):
                await resource.delete(("k",), "s:k", 9, wrong)
            assert await subject.read(resource, ("k",), "s:k") == "text"
            assert await resource.mark("s:k") == 9

    # --- durability, and several adapters at once ------------------------------------------------------------------

    async def test_marks_and_values_survive_close_and_reopen(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "text", 8)
            await resource.claim("s:claimed", 8)
        async with opened(subject.new()) as resource:
            assert await subject.read(resource, ("k",), "s:k") == "text"
            for fence in ("s:k", "s:claimed"):
                with pytest.raises(StaleToken):
                    await subject.write(resource, ("k",), fence, "late", 7)

    async def test_two_adapters_over_the_same_data_see_each_others_marks(self, subject: Subject) -> None:
        async with opened(subject.new()) as one, opened(subject.new()) as two:
            await subject.write(one, ("k",), "s:k", "of one", 7)
            await two.claim("s:k", 8)
            with pytest.raises(StaleToken):
                await subject.write(one, ("k",), "s:k", "late", 7)
            await subject.write(two, ("k",), "s:k", "of two", 8)
            assert await subject.read(one, ("k",), "s:k") == "of two"
            assert await one.mark("s:k") == 8

    async def test_concurrent_writes_never_go_back(self, subject: Subject) -> None:
        dice = ManualClock(seed=7)
        async with opened(subject.new()) as one, opened(subject.new()) as two:
            adapters = (one, two)
            ticks = itertools.count()
            attempts: list[_Attempt] = []

            async def worker(number: int) -> None:
                for step in range(6):
                    fence = f"s:{int(dice.jitter() * 3)}"
                    # Tokens rise with time but overlap between workers, so that both answers are common.
                    attempt = _Attempt(fence, 1 + step * 100 + int(dice.jitter() * 300), began=next(ticks))
                    with contextlib.suppress(StaleToken):
                        text = f"{attempt.token}"
                        await subject.write(adapters[number % 2], (fence[2:],), fence, text, attempt.token)
                        attempt.ended = next(ticks)
                    attempts.append(attempt)

            await asyncio.gather(*(worker(number) for number in range(12)))
            accepted = [attempt for attempt in attempts if attempt.ended is not None]
            assert 0 < len(accepted) < len(attempts), "the run must hold both answers to show anything"
            for fence in {attempt.fence for attempt in accepted}:
                await self._assert_never_back(subject, one, [a for a in accepted if a.fence == fence])

    async def _assert_never_back(self, subject: Subject, resource: Resource, accepted: list["_Attempt"]) -> None:
        for earlier, later in itertools.permutations(accepted, 2):
            if earlier.ended is not None and earlier.ended < later.began:
                assert earlier.token <= later.token
        fence, highest = accepted[0].fence, max(attempt.token for attempt in accepted)
        assert await subject.read(resource, (fence[2:],), fence) == f"{highest}"
        assert await resource.mark(fence) == highest

    # --- fences are named by the lock key --------------------------------------------------------------------------

    async def test_a_job_fence_refuses_a_stale_write_to_a_key_its_successor_never_touched(
        self, subject: Subject
    ) -> None:
        async with opened(subject.new(guard=JOB)) as resource:
            for number in range(6):
                await subject.write(resource, (f"k{number}",), JOB, "of 7", 7)
            for number in range(4):
                await subject.write(resource, (f"k{number}",), JOB, "of 8", 8)
            for number in range(6):
                with pytest.raises(StaleToken):
                    await subject.write(resource, (f"k{number}",), JOB, "late", 7)
            texts = [await subject.read(resource, (f"k{number}",), JOB) for number in range(6)]
            assert texts == ["of 8"] * 4 + ["of 7"] * 2

    async def test_hostile_keys_and_fences_are_all_distinct(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            for token, key in enumerate(reversed(HOSTILE_KEYS), start=1):
                # The tokens fall from key to key: two fences taken for one would refuse the second.
                await subject.write(resource, (key,), f"s:{key}", f"text of {key}", 1000 - token)
            for token, key in enumerate(reversed(HOSTILE_KEYS), start=1):
                assert await subject.read(resource, (key,), f"s:{key}") == f"text of {key}"
                assert await resource.mark(f"s:{key}") == 1000 - token

    # --- shadow mode -----------------------------------------------------------------------------------------------

    async def test_shadow_mode_reports_a_stale_write_and_lets_it_through(self, subject: Subject) -> None:
        async with opened(subject.new("shadow")) as resource:
            assert (await subject.write(resource, ("k",), "s:k", "new", 9)).shadow is None
            assert (await subject.write(resource, ("k",), "s:k", "old", 5)).shadow == ShadowRefusal(5, 9)
            assert await subject.read(resource, ("k",), "s:k") == "old"
            assert (await resource.claim("s:k", 6)).shadow == ShadowRefusal(6, 9)
            assert (await resource.delete(("k",), "s:k", 7)).shadow == ShadowRefusal(7, 9)
            assert await resource.mark("s:k") == 9

    async def test_marks_of_shadow_mode_do_not_count_once_it_enforces(self, subject: Subject) -> None:
        async with opened(subject.new("shadow")) as resource:
            await subject.write(resource, ("k",), "s:k", "shadow", 900)
        resource = subject.new("enforce")
        await resource.raise_floor(1)
        async with opened(resource):
            await subject.write(resource, ("k",), "s:k", "enforced", 3)
            assert await resource.mark("s:k") == 3

    # --- configuration, and the floor ------------------------------------------------------------------------------

    @pytest.mark.parametrize(("mode", "guard"), [("enforce", JOB), ("shadow", PER_KEY)])
    async def test_a_changed_guard_or_mode_refuses_to_open(self, subject: Subject, mode: Mode, guard: str) -> None:
        async with opened(subject.new()):
            pass
        changed = subject.new(mode, guard)
        with pytest.raises(UnsafeConfiguration):
            await changed.open()
        await changed.close()
        async with opened(subject.new()):
            pass  # the refused one recorded nothing

    async def test_a_floor_lets_a_changed_guard_open_and_refuses_everything_below_it(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "text", 50)
        changed = subject.new(guard=JOB)
        await changed.raise_floor(60)
        async with opened(changed):
            for fence in ("s:k", JOB, "s:never-seen"):
                with pytest.raises(StaleToken) as refused:
                    await subject.write(changed, ("k",), fence, "late", 59)
                assert refused.value.highest == 60
                with pytest.raises(StaleToken):
                    await changed.claim(fence, 59)
                with pytest.raises(StaleToken):
                    await subject.read(changed, ("k",), fence, 59)
                with pytest.raises(StaleToken):
                    await changed.delete(("k",), fence, 59)
            assert await subject.read(changed, ("k",), JOB) == "text"
            await subject.write(changed, ("k",), JOB, "new", 60)
            assert await subject.read(changed, ("k",), JOB) == "new"

    async def test_a_floor_is_never_lowered(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await resource.raise_floor(60)
            await resource.raise_floor(10)
            with pytest.raises(StaleToken):
                await subject.write(resource, ("k",), "s:k", "late", 59)
        async with opened(subject.new()) as resource:
            with pytest.raises(StaleToken):
                await subject.write(resource, ("k",), "s:k", "late", 59)

    async def test_a_floor_binds_an_adapter_that_was_open_already(self, subject: Subject) -> None:
        async with opened(subject.new()) as one, opened(subject.new()) as two:
            await subject.write(one, ("k",), "s:k", "before", 7)
            await two.raise_floor(60)
            with pytest.raises(StaleToken):
                await subject.write(one, ("k",), "s:k", "late", 59)
            assert await subject.read(one, ("k",), "s:k") == "before"

    async def test_an_adapter_that_is_open_is_refused_once_the_guard_was_changed(self, subject: Subject) -> None:
        async with opened(subject.new()) as former:
            changed = subject.new(guard=JOB)
            await changed.raise_floor(60)
            async with opened(changed):
                # It would go on fencing by the lock key that no longer protects anything.
                with pytest.raises(UnsafeConfiguration):
                    await subject.write(former, ("k",), "s:k", "under the former guard", 70)
                assert await subject.read(changed, ("k",), JOB) is None


@dataclass(slots=True)
class _Attempt:
    """One write of the concurrent test, with where it began and ended in the order of events."""

    fence: str
    token: int
    began: int
    ended: int | None = None
