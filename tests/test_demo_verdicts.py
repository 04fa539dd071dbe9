"""The tables of verdicts at a terminal: every run has its line, in the width that a terminal has by default."""

from pathlib import Path

from rich.console import Console

from fencegate_demo.exhibit import ArmShown, Exhibit
from fencegate_demo.terminal_verdicts import verdicts
from fencegate_demo.timeline import Timeline

COLUMNS = 80


def exhibit(
    name: str, resource: str, store: str, accepted: int = 0, program: Path | None = None, held: str = ""
) -> Exhibit:
    timeline = Timeline(1, ())
    fenced = ArmShown("fenced", "", "1 stale write refused", accepted == 0, timeline, 3, accepted, accepted, held)
    unfenced = ArmShown("unfenced", "", "3 accepted", False, timeline, 3, 3, 3, held)
    return Exhibit(name, resource, store, "", accepted == 0, (fenced, unfenced), (), program)


def shown(*exhibits: Exhibit) -> list[str]:
    console = Console(width=COLUMNS, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(verdicts(exhibits))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= COLUMNS
    return lines


def test_each_place_is_one_line_however_many_there_are() -> None:
    places = [("redis-hashes", "sqlite"), ("postgresql", "sqlite"), ("rows", "postgresql"), ("rows", "zookeeper")]
    names = ("gc-pause", "gateway-pause", "first-write")
    lines = shown(*(exhibit(name, *place) for place in places for name in names))
    for resource, store in places:
        (line,) = [line for line in lines if line.split()[:2] == [resource, store]]
        assert line.count("✓ 3/3 else 3 in") == len(names)


def test_what_was_not_proved_or_broke_off_stands_out() -> None:
    lines = shown(
        exhibit("gc-pause", "rows", "sqlite", accepted=1),
        exhibit("gc-pause", "s3", "sqlite"),
        exhibit("first-write", "s3", "sqlite"),
    )
    (rows,) = [line for line in lines if "rows" in line]
    assert "NOT PROVED 2/3" in rows
    assert "broke off" in rows


def test_uses_have_a_table_of_their_own() -> None:
    held = "the cache holds the page of v1, and the source is at v2"
    lines = shown(exhibit("cache", "objects", "", program=Path("cache.py"), held=held))
    assert any("cache" in line and "✓ 1 stale write refused" in line for line in lines)
