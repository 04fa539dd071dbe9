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
from array import array
from collections import Counter
from typing import Any

from bench import libraries

WARM_UP_S = 0.5
HELD_S = 0.002


class Tally:
    """What was seen since it counts."""

    def __init__(self, kind: str, what: str) -> None:
        self.kind = kind
        self.what = what
        self.errors: list[str] = []
        self.until_s = 0.0
        self.let_go_s = 0.0
        """When the last holder began to release."""
        self.begin(0.0)

    def begin(self, seconds: float) -> None:
        """From here on it counts."""
        self.times_s = array("d")
        """Of each cycle how long it took to acquire, and to release; or of each hand-over. They are sorted out at the
        end, since whatever is done between two calls would be counted among them."""
        self.let_go_s = 0.0
        self.started_s, self.started_cpu_s = time.perf_counter(), time.process_time()
        self.until_s = self.started_s + seconds

    @property
    def latencies(self) -> dict[str, Counter[int]]:
        calls = ("acquire", "release") if self.what == "cycles" else ("hand-over",)
        return {
            call: Counter(round(took_s * 1e6) for took_s in self.times_s[number :: len(calls)])
            for number, call in enumerate(calls)
        }

    @property
    def cycles(self) -> int:
        return len(self.times_s) // (2 if self.what == "cycles" else 1)

    def failed(self, error: Exception) -> None:
        self.errors.append(f"{type(error).__name__}: {error}")


async def one_task(client: libraries.AsyncClient, tally: Tally) -> None:
    now, times_s = time.perf_counter, tally.times_s
    try:
        asked_s = now()
        while asked_s < tally.until_s and not tally.errors:
            await client.acquire()
            held_s = now()
            await client.release()
            released_s = now()
            times_s.extend((held_s - asked_s, released_s - held_s))
            asked_s = released_s
    except Exception as error:
        tally.failed(error)


async def one_task_after_another(client: libraries.AsyncClient, tally: Tally) -> None:
    now = time.perf_counter
    try:
        while (asked_s := now()) < tally.until_s and not tally.errors:
            await client.acquire()
            held_s = now()
            if asked_s < tally.let_go_s:  # only who was waiting already
                tally.times_s.append(held_s - tally.let_go_s)
            await asyncio.sleep(HELD_S)
            tally.let_go_s = now()
            await client.release()
    except Exception as error:
        tally.failed(error)


def one_thread(client: libraries.SyncClient, tally: Tally) -> None:
    now, times_s = time.perf_counter, tally.times_s
    try:
        asked_s = now()
        while asked_s < tally.until_s and not tally.errors:
            client.acquire()
            held_s = now()
            client.release()
            released_s = now()
            times_s.extend((held_s - asked_s, released_s - held_s))
            asked_s = released_s
    except Exception as error:
        tally.failed(error)


def one_thread_after_another(client: libraries.SyncClient, tally: Tally) -> None:
    now = time.perf_counter
    try:
        while (asked_s := now()) < tally.until_s and not tally.errors:
            client.acquire()
            held_s = now()
            if asked_s < tally.let_go_s:
                tally.times_s.append(held_s - tally.let_go_s)
            time.sleep(HELD_S)
            tally.let_go_s = now()
            client.release()
    except Exception as error:
        tally.failed(error)


async def with_tasks(make: libraries.MakeAsync, url: str, clients: int, seconds: float, tally: Tally) -> None:
    one = one_task if tally.what == "cycles" else one_task_after_another
    async with make(url, [_name(tally, client) for client in range(clients)]) as made:
        for each_s in (WARM_UP_S, seconds):
            tally.begin(each_s)
            await asyncio.gather(*(one(client, tally) for client in made))


def with_threads(make: libraries.MakeSync, url: str, clients: int, seconds: float, tally: Tally) -> None:
    one = one_thread if tally.what == "cycles" else one_thread_after_another
    with make(url, [_name(tally, client) for client in range(clients)]) as made:
        for each_s in (WARM_UP_S, seconds):
            tally.begin(each_s)
            threads = [threading.Thread(target=one, args=(client, tally)) for client in made]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


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
