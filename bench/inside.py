"""`python -m bench.inside KIND URL cycles|hand-over CLIENTS SECONDS`: one library under load; ends with a line of JSON.

cycles: each client acquires and releases a lock of its own. hand-over: all of them after one lock; a hand-over is from
the moment that a holder begins to release until the next one has it, and each holds it for a moment.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from bench import libraries

WARM_UP_S = 0.5
HELD_S = 0.002


class Tally:
    """What was seen, once it counts."""

    def __init__(self, kind: str, what: str) -> None:
        self.kind = kind
        self.what = what
        self.counts = False
        self.cycles = 0
        self.errors: list[str] = []
        calls = ("acquire", "release") if what == "cycles" else ("hand-over",)
        self.latencies: dict[str, Counter[int]] = {call: Counter() for call in calls}
        self.let_go_s = 0.0
        """When the last holder began to release."""
        self.until_s = 0.0
        self.started_s = 0.0
        self.started_cpu_s = 0.0

    @property
    def over(self) -> bool:
        return bool(self.errors) or time.perf_counter() >= self.until_s

    def cycle(self, asked_s: float, held_s: float, releasing_s: float, released_s: float) -> None:
        if self.counts:
            self.cycles += 1
            self.latencies["acquire"][round((held_s - asked_s) * 1e6)] += 1
            self.latencies["release"][round((released_s - releasing_s) * 1e6)] += 1

    def handed_over(self, asked_s: float, held_s: float) -> None:
        """Only to one who was waiting already."""
        if self.counts and asked_s < self.let_go_s:
            self.cycles += 1
            self.latencies["hand-over"][round((held_s - self.let_go_s) * 1e6)] += 1


async def one_task(client: libraries.AsyncClient, tally: Tally) -> None:
    try:
        while not tally.over:
            asked_s = time.perf_counter()
            await client.acquire()
            held_s = time.perf_counter()
            if tally.what == "hand-over":
                tally.handed_over(asked_s, held_s)
                await asyncio.sleep(HELD_S)
                tally.let_go_s = time.perf_counter()
            releasing_s = time.perf_counter()
            await client.release()
            if tally.what == "cycles":
                tally.cycle(asked_s, held_s, releasing_s, time.perf_counter())
    except Exception as error:
        tally.errors.append(f"{type(error).__name__}: {error}")


def one_thread(client: libraries.SyncClient, tally: Tally, mutex: threading.Lock) -> None:
    try:
        while not tally.over:
            asked_s = time.perf_counter()
            client.acquire()
            held_s = time.perf_counter()
            if tally.what == "hand-over":
                with mutex:
                    tally.handed_over(asked_s, held_s)
                time.sleep(HELD_S)
                tally.let_go_s = time.perf_counter()
            releasing_s = time.perf_counter()
            client.release()
            released_s = time.perf_counter()
            if tally.what == "cycles":
                with mutex:
                    tally.cycle(asked_s, held_s, releasing_s, released_s)
    except Exception as error:
        tally.errors.append(f"{type(error).__name__}: {error}")


async def with_tasks(make: libraries.MakeAsync, url: str, clients: int, seconds: float, tally: Tally) -> None:
    async with make(url, [_name(tally, client) for client in range(clients)]) as made:
        await _rounds(tally, seconds, lambda: _gather(made, tally))


async def _gather(made: list[libraries.AsyncClient], tally: Tally) -> None:
    await asyncio.gather(*(one_task(client, tally) for client in made))


async def _rounds(tally: Tally, seconds: float, run: Callable[[], Awaitable[None]]) -> None:
    tally.until_s = time.perf_counter() + WARM_UP_S
    await run()
    begin(tally, seconds)
    await run()


def with_threads(make: libraries.MakeSync, url: str, clients: int, seconds: float, tally: Tally) -> None:
    with make(url, [_name(tally, client) for client in range(clients)]) as made:
        mutex = threading.Lock()

        def run() -> None:
            threads = [threading.Thread(target=one_thread, args=(client, tally, mutex)) for client in made]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        tally.until_s = time.perf_counter() + WARM_UP_S
        run()
        begin(tally, seconds)
        run()


def begin(tally: Tally, seconds: float) -> None:
    """From here on it counts."""
    tally.counts, tally.let_go_s = True, 0.0
    tally.started_s, tally.started_cpu_s = time.perf_counter(), time.process_time()
    tally.until_s = time.perf_counter() + seconds


def _name(tally: Tally, client: int) -> str:
    """Each library has names of its own: two of them keep different things under `lock:NAME`."""
    return f"bench-{tally.kind}:{client if tally.what == 'cycles' else 'one'}"


def told(tally: Tally) -> dict[str, Any]:
    took_s = time.perf_counter() - tally.started_s
    cpu_s = time.process_time() - tally.started_cpu_s
    return {
        "cycles": tally.cycles,
        "rate": tally.cycles / took_s,
        "errors": len(tally.errors),
        "firstError": tally.errors[0] if tally.errors else "",
        "latencies": tally.latencies,
        "cpu": cpu_s / took_s / (os.cpu_count() or 1),
    }


def main(argv: list[str]) -> int:
    kind, url, what, clients, seconds = argv
    tally = Tally(kind, what)
    make = libraries.ASYNC.get(kind)
    if make is not None:
        asyncio.run(with_tasks(make, url, int(clients), float(seconds), tally))
    else:
        with_threads(libraries.SYNC[kind], url, int(clients), float(seconds), tally)
    print(json.dumps(told(tally)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
