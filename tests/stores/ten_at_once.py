"""Ten processes that open one store at the same moment, when it has no tables yet."""

import asyncio
import subprocess
import sys

_PROGRAM = """
import asyncio, importlib, os, sys
from fencegate.core.ports import Change
from fencegate_lockservice import stores
from fencegate_lockservice.stores.sql import migrations  # before the fork: once, not ten times

importlib.import_module(f"fencegate_lockservice.stores.{sys.argv[1]}.store")

async def main(number):
    store = await stores.open_store(sys.argv[2])
    await store.commit([Change(f"k{number}", None, "v", b"{}")], [], store.now().latest + 60_000_000)
    await store.close()

ready, go = os.pipe()
children = []
for number in range(10):
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(ready, 1)  # until the parent lets go
        asyncio.run(main(number))
        os._exit(0)
    children.append(pid)
os.close(go)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""


async def ten_open(url: str, store: str) -> None:
    """Each of them finds tables in the end, and commits `k0` to `k9`. `store` is the module of the store."""
    run = [sys.executable, "-c", _PROGRAM, store, url]
    done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == f"{[0] * 10}\n", done
