"""File processing on trial: an inbox, and a worker that sleeps when its result is about to leave."""

import json
from collections.abc import Sequence

from fencegate.clock import sleep_s
from fencegate_demo.contents import read_object
from fencegate_demo.trials.bench import Bench
from fencegate_demo.trials.events import Touched
from fencegate_demo.trials.use import Findings, Place, Use
from fencegate_demo.uses import files

FILES = 5
LOOKS_EVERY_S = 0.1


def _names(place: Place) -> list[str]:
    return [f"{place.name}-{number + 1}.csv" for number in range(FILES)]


def prepare(place: Place) -> None:
    inbox = place.path / "inbox"
    inbox.mkdir()
    for lines, name in enumerate(_names(place), 1):
        (inbox / name).write_text("line\n" * lines, encoding="utf-8")


def work(bench: Bench) -> None:
    inbox = bench.place.path / "inbox"

    def parse(content: bytes) -> bytes:
        return json.dumps({"lines": content.count(b"\n"), "by": bench.name}).encode()

    with bench.locks() as locks, bench.http() as results:
        while any(inbox.iterdir()):
            bench.attempt(lambda: files.process(locks, results, inbox, parse, ttl=bench.ttl))
            sleep_s(LOOKS_EVERY_S)


async def examine(place: Place, touched: Sequence[Touched]) -> Findings:
    wrong, results = [], 0
    for lines, name in enumerate(_names(place), 1):
        body = await read_object(place.settings, (name,))
        result = {"lines": 0, "by": "nobody"} if body is None else json.loads(body)
        results += body is not None
        by = [each.actor for each in touched if each.kind == "write" and each.accepted and each.lock_key.endswith(name)]
        if by != [result["by"]] or result["lines"] != lines:
            told = f"processed by {' and again by '.join(by) or 'nobody'}"
            wrong.append(f"file {lines} was {told}; the result is that of {result['by']}")
    return Findings({"files": FILES, "results": results}, wrong)


USE = Use(
    "files",
    "file processing: workers share an inbox, each file is processed once",
    "objects",
    prepare,
    work,
    examine,
    guard="files:{key}",
)
