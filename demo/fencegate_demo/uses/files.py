"""File processing: workers share an inbox, and each file is processed once.

Whoever gets the lock of a file processes it; the others go on to the next. Results go through the gateway with the
token of that lock, so that a worker that was frozen over a file can't replace the result of the one that took over.

The gateway is told that a result is guarded by the lock of its file: `guard = "files:{key}"`.

    locks, results = connect(), httpx.Client(base_url="http://127.0.0.1:7420/v1/resources/results/")
    process(locks, results, Path("inbox"), parse)
"""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import httpx

from fencegate.sync import Locks


def process(
    locks: Locks, results: httpx.Client, inbox: Path, parse: Callable[[bytes], bytes], *, ttl: float = 30.0
) -> list[str]:
    """Go through the inbox once; the names of the files that this worker processed. What is left, others have."""
    processed = []
    for file in sorted(inbox.iterdir()):
        with locks.try_hold(f"files:{file.name}", ttl=ttl) as lease:
            if lease is None:
                continue
            address = quote(file.name)
            # A fenced read: from here on the gateway refuses whoever held this lock before us.
            known = results.get(address, headers=lease.headers())
            if known.status_code == 404 and file.exists():
                result = parse(file.read_bytes())
                answer = results.put(address, content=result, headers=lease.headers())
                answer.raise_for_status()  # 412: somebody else has taken over, and nothing was written
                processed.append(file.name)
            elif known.status_code != 404:
                known.raise_for_status()
            file.unlink(missing_ok=True)  # only now: a worker that dies before leaves the file to the next one
    return processed
