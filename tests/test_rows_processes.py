"""Rows among real processes: stopped at the worst line, killed in the middle, and many at once."""

import asyncio
import contextlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fencegate.core.errors import ResourceUnavailable, StaleToken
from fencegate.core.ports import RowWrite
from fencegate_adapters.sql import RowsResource
from tests.child import Child

OPEN = """
import asyncio
from fencegate import failpoint
from fencegate.core.errors import FencegateError, StaleToken
from fencegate.core.ports import RowWrite
from fencegate_adapters.sql import RowsResource

def opened(**more):
    resource = RowsResource("rows", "sqlite:///" + sys.argv[1], guard_template="job:x", **more)
    asyncio.run(resource.open())
    return resource

def write(resource, token, key, value):
    asyncio.run(resource.write("job:x", token, [RowWrite("put", (key,), value)]))
"""

STOPPED_BEFORE = (
    OPEN
    + """
rows = opened()
failpoint.arm("resource.write=stop@1")
try:
    write(rows, 7, "k", {"of": 7})
    say("written")
except StaleToken as stale:
    say("stale %d %d" % (stale.token, stale.highest))
"""
)

STOPPED_INSIDE = (
    OPEN
    + """
from sqlalchemy import event
rows = opened()

@event.listens_for(rows._engine, "before_cursor_execute")
def stop(connection, cursor, statement, *_):
    if statement.startswith("INSERT INTO rows"):
        signal.raise_signal(signal.SIGSTOP)

write(rows, 7, "k", {"of": 7})
say("written")
"""
)

WRITER = (
    OPEN
    + """
rows = opened()
number = int(sys.argv[2])
while True:
    number += 1
    write(rows, number, "k%d" % (number % 5), {"n": number})
    say(number)
"""
)

HAMMER = (
    OPEN
    + """
import random
sys.stdin.readline()
rows = opened(wait_ms=20000)
dice = random.Random(int(sys.argv[2]))
for step in range(40):
    token = 1 + step * 10 + dice.randrange(40)
    try:
        write(rows, token, "k", {"n": token})
        say("accepted %d" % token)
    except StaleToken as stale:
        assert stale.highest > token
        say("stale %d" % token)
say("done")
"""
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.db"


def rows_at(path: Path, wait_ms: int = 5000) -> RowsResource:
    return RowsResource("rows", f"sqlite:///{path}", guard_template="job:x", wait_ms=wait_ms)


async def test_a_writer_stopped_right_before_its_transaction_is_refused_after_its_successor(path: Path) -> None:
    with Child(STOPPED_BEFORE, path) as stale:
        stale.wait_until_stopped()
        rows = rows_at(path)
        await rows.open()
        await rows.write("job:x", 8, [RowWrite("put", ("other",), {"of": 8})])
        stale.proceed()
        assert stale.line() == "stale 7 8"
        assert (await rows.read(("k",), "job:x"))[0] is None
        await rows.close()


async def test_a_writer_stopped_inside_its_transaction_is_waited_for_but_never_overtakes(path: Path) -> None:
    with Child(STOPPED_INSIDE, path) as stopped:
        stopped.wait_until_stopped()
        rows = rows_at(path, wait_ms=300)
        with pytest.raises(ResourceUnavailable) as busy:
            await rows.open()
        assert busy.value.outcome == "not-written"
        stopped.proceed()
        assert stopped.line() == "written"
    await rows.open()
    await rows.write("job:x", 8, [RowWrite("put", ("k",), {"of": 8})])
    with pytest.raises(StaleToken):
        await rows.write("job:x", 7, [RowWrite("put", ("k",), {"of": 7})])
    assert (await rows.read(("k",), "job:x"))[0] == {"of": 8}
    await rows.close()


async def test_a_writer_killed_inside_its_transaction_wrote_nothing_and_blocks_nobody(path: Path) -> None:
    with Child(STOPPED_INSIDE, path) as killed:
        killed.wait_until_stopped()
        killed.kill()
    rows = rows_at(path)
    await rows.open()
    assert (await rows.read(("k",), "job:x"))[0] is None
    assert await rows.mark("job:x") == 0
    await rows.close()


async def test_what_was_acknowledged_before_kill_9_is_there_with_its_mark(path: Path) -> None:
    acknowledged = 0
    for _ in range(4):
        with Child(WRITER, path, acknowledged) as writer:
            for _ in range(25):
                acknowledged = int(writer.line())
            writer.kill()
        rows = rows_at(path)
        await rows.open()
        mark = await rows.mark("job:x")
        assert mark >= acknowledged
        found = [(await rows.read((f"k{number}",), "job:x"))[0] for number in range(5)]
        # The writer may have written a few more than it could tell; what is there is a whole number of writes.
        assert sorted(row["n"] for row in found if row) == list(range(mark - 4, mark + 1))
        with pytest.raises(StaleToken):
            await rows.write("job:x", acknowledged - 1, [RowWrite("put", ("k0",), {"n": 0})])
        acknowledged = mark
        await rows.close()


async def test_many_processes_open_and_write_at_once_and_tokens_never_go_back(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(HAMMER, path, seed)) for seed in range(3)]
        for child in children:
            assert child.process.stdin is not None
            child.process.stdin.write("go\n")
            child.process.stdin.flush()
        told = await asyncio.gather(*(asyncio.to_thread(_until_done, child) for child in children))
    accepted = [[int(line.split()[1]) for line in lines if line.startswith("accepted")] for lines in told]
    assert any("stale" in line for lines in told for line in lines), "the run must hold both answers to show anything"
    for tokens in accepted:
        assert tokens == sorted(tokens)
    highest = max(token for tokens in accepted for token in tokens)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT token FROM fencegate_fences").fetchall() == [(highest,)]
        assert database.execute("SELECT document FROM rows").fetchall() == [(f'{{"n":{highest}}}',)]


def _until_done(child: Child) -> list[str]:
    lines = []
    while (line := child.line()) != "done":
        assert line, "it ended before it was done"
        lines.append(line)
    return lines
