"""A store's server in a hundred lines, to try the fault suite on: `python -m tests.toy_server PORT JOURNAL [DEFECT]`.

One request is a line of JSON, [number, verb, arguments]; its answer is a line [number, time, result]. Commits go to a
journal, so that they survive kill -9. A DEFECT makes it break the store contract in one way, and the suite must see it.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

DEFECTS = ("compares-nothing", "forgets-when-killed", "says-conflict-though-it-wrote")


class Toy:
    def __init__(self, journal: Path, defect: str) -> None:
        self._defect = defect
        self._entries: dict[str, tuple[str, str]] = {}
        self._log: list[tuple[int, int, str, str]] = []
        self._commits = 0
        if journal.exists() and defect != "forgets-when-killed":
            for line in journal.read_text().splitlines():
                self._write(*json.loads(line))
        self._journal = journal.open("a")

    def load(self, keys: list[str]) -> dict[str, tuple[str, str]]:
        return {key: self._entries[key] for key in keys if key in self._entries}

    def scan(self, prefix: str, after: str, limit: int) -> list[tuple[str, tuple[str, str]]]:
        keys = sorted(key for key in self._entries if key.startswith(prefix) and key > after)
        return [(key, self._entries[key]) for key in keys[:limit]]

    def newest(self) -> int:
        return self._log[-1][0] if self._log else 0

    def log(self, since: int) -> list[tuple[int, int, str, str]]:
        return [line for line in self._log[-1000:] if line[0] > since]

    def commit(self, changes: list[list[Any]], log: list[list[str]], not_after_us: int) -> str:
        if time.time_ns() // 1000 > not_after_us:
            return "late"
        for key, expected, *_ in changes:
            entry = self._entries.get(key)
            if (entry[0] if entry else None) != expected and self._defect != "compares-nothing":
                return "conflict"
        revision = max(self.newest() + 1, time.time_ns() // 1_000_000)
        self._journal.write(json.dumps([changes, log, revision]) + "\n")
        self._journal.flush()
        self._write(changes, log, revision)
        self._commits += 1
        lies = self._defect == "says-conflict-though-it-wrote" and self._commits % 3 == 0
        return "conflict" if lies else "done"

    def _write(self, changes: list[list[Any]], log: list[list[str]], revision: int) -> None:
        for key, _, version, value, compare_only in changes:
            if value is not None:
                self._entries[key] = (version, value)
            elif not compare_only:
                self._entries.pop(key, None)
        self._log += [(revision, number, key, event) for number, (key, event) in enumerate(log)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                number, verb, arguments = json.loads(line)
                result = getattr(self, verb)(*arguments)
                writer.write(json.dumps([number, time.time_ns() // 1000, result]).encode() + b"\n")
        except (ConnectionError, json.JSONDecodeError):
            pass
        finally:
            writer.close()


async def main() -> None:
    port, journal, defect = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
    server = await asyncio.start_server(Toy(journal, defect).serve, "127.0.0.1", port, limit=2**24)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
