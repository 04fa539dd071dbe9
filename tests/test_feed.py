"""Who follows a log that was lost, or has become another one, is told so: in the feed, and by what keeps it up."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from fencegate.core.ports import Changes, LogEntry, Unavailable
from fencegate.feed import Feed
from fencegate_lockservice.stores import following as following_module
from fencegate_lockservice.stores.following import Following
from tests.eventually import eventually


def line(revision: int) -> LogEntry:
    return LogEntry(revision, 0, "k", b"{}")


async def answer(stream: AsyncGenerator[Changes, None]) -> Changes:
    async with asyncio.timeout(30):
        return await anext(stream)


class Log:
    """One that is kept elsewhere, and has been written anew up to 105 from 91 on."""

    def __init__(self) -> None:
        self.lines = [line(revision) for revision in range(91, 106)]

    async def read(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        return [entry for entry in self.lines if entry.revision > since][:limit]


async def test_what_was_only_not_published_is_read_from_the_log() -> None:
    feed = Feed(100, Log().read)
    async with aclosing(feed.follow(None)) as stream:
        assert await answer(stream) == Changes(100)
        feed.lost(105)
        assert await answer(stream) == Changes(105, [line(revision) for revision in range(101, 106)])


async def test_whoever_follows_a_log_that_becomes_another_one_is_told_so_once() -> None:
    feed = Feed(100, Log().read)
    async with aclosing(feed.follow(None)) as awake, aclosing(feed.follow(None)) as asleep:
        assert [await answer(awake), await answer(asleep)] == [Changes(100), Changes(100)]
        waiting = asyncio.ensure_future(answer(asleep))
        await asyncio.sleep(0)
        feed.lost(105, reset=True)
        assert [await answer(awake), await waiting] == [Changes(105, reset=True), Changes(105, reset=True)]
        feed.publish([line(106)])
        assert [await answer(awake), await answer(asleep)] == [Changes(106, [line(106)])] * 2


async def test_whoever_comes_later_with_a_revision_of_the_log_that_was_is_told_so() -> None:
    feed = Feed(100, Log().read)
    feed.lost(95, reset=True)  # the new one is behind
    feed.publish([line(revision) for revision in range(96, 106)])
    for since in (90, 97, 100):
        async with aclosing(feed.follow(since)) as stream:
            assert await answer(stream) == Changes(105, reset=True)
            assert feed.revision == 105
    async with aclosing(feed.follow(101)) as stream:
        assert await answer(stream) == Changes(105, [line(revision) for revision in range(102, 106)])
    async with aclosing(feed.follow(None)) as stream:
        assert await answer(stream) == Changes(105)


async def test_a_log_that_stands_where_the_last_one_stood_is_another_one_all_the_same() -> None:
    feed = Feed(99, Log().read)
    feed.publish([line(100)])
    async with aclosing(feed.follow(99)) as stream:
        assert await answer(stream) == Changes(100, [line(100)])
        feed.lost(100, reset=True)
        assert await answer(stream) == Changes(100, reset=True)
        feed.publish([line(101)])
        assert await answer(stream) == Changes(101, [line(101)])


async def test_a_tail_that_says_once_that_lines_are_gone_resets_all_who_follow() -> None:
    log, newest, switched, told = Log(), 100, asyncio.Event(), False

    async def tail(since: int) -> AsyncIterator[Sequence[LogEntry] | None]:
        nonlocal told
        await switched.wait()
        if not told:
            told = True
            yield None
            return
        await asyncio.Event().wait()

    asked = 0

    async def read_newest() -> int:
        nonlocal asked
        asked += 1
        if switched.is_set() and asked < 5:  # just when the reset is due
            raise Unavailable("the server is away")
        return newest

    following = Following(tail, read_newest, log.read)
    streams = [following.changes(None), following.changes(95)]
    assert [(await answer(stream)).reset for stream in streams] == [False, False]
    newest = 105
    switched.set()
    assert [await answer(stream) for stream in streams] == [Changes(105, reset=True)] * 2
    for stream in streams:
        await stream.aclose()
    await following.close()


async def test_a_log_that_can_not_be_read_for_a_while_is_told_of_once_and_not_at_each_try(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_module, "AGAIN_AFTER_S", 0.001)
    tries = 0

    async def tail(_since: int) -> AsyncIterator[Sequence[LogEntry] | None]:
        nonlocal tries
        tries += 1
        if tries == 20:
            yield [LogEntry(1, 0, "k", b"")]
        raise Unavailable(f"no answer to {tries}")

    async def newest() -> int:
        return 0

    async def read_log(_since: int, _limit: int) -> Sequence[LogEntry] | None:
        return []

    following = Following(tail, newest, read_log)
    stream = following.changes(None)
    await anext(stream)
    await eventually(lambda: tries > 40)
    await stream.aclose()
    await following.close()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [f"the change log can't be read: no answer to {number}" for number in (1, 20)]
