"""A worker, in a process of its own: it works on one use when it is told to go, and says what happens."""

import socket
import sys
import traceback
from collections.abc import Callable

import msgspec

from fencegate.clock import SYSTEM
from fencegate_demo.trials.events import Began, Born, Done, Stumbled, Told
from fencegate_demo.trials.registry import USES
from fencegate_demo.trials.use import Place, Role


class Part(msgspec.Struct, frozen=True):
    """Who this worker is."""

    name: str
    use: str
    role: Role
    ttl: float
    lock_service: str
    place: Place


def play(line: socket.socket, pid: int) -> None:
    """Be told the part, say that we are there, go when told to, and leave when the line is closed."""
    with line.makefile("r", encoding="utf-8") as told:
        part = msgspec.json.decode(told.readline(), type=Part)

        def say(event: Told) -> None:
            line.sendall(msgspec.json.encode(event) + b"\n")

        say(Born(SYSTEM.monotonic_us(), part.name, pid))
        if told.readline():
            _work(part, say)
            told.readline()


def load() -> None:
    """All that workers need, so that those who are forked from this process have it: nobody else needs it."""
    list(USES.values())


def _work(part: Part, say: Callable[[Told], None]) -> None:
    from fencegate_demo.trials.bench import Bench
    from fencegate_demo.trials.boundary import Boundary

    say(Began(SYSTEM.monotonic_us(), part.name))
    boundary = Boundary(part.name, say)
    bench = Bench(part.name, part.role, part.ttl, part.lock_service, part.place, boundary)
    try:
        USES[part.use].work(bench)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        say(Stumbled(SYSTEM.monotonic_us(), part.name, f"{type(error).__name__}: {error}".splitlines()[0]))
    else:
        say(Done(SYSTEM.monotonic_us(), part.name))
