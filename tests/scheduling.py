"""Which tests run in one worker, one after the other, which begin first, and which run side by side."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import pytest

LONGEST = (
    "store etcd",
    "store redis",
    "store postgres",
    "store zookeeper",
    "store redlock",
    "store mysql",
    "resource databases",
    "resource bucket",
    "resource along",
    "test_kill",
    "test_stores",
    "test_demo_uses",
    "test_real",
    "test_simulation",
    "test_objects_simulation",
    "test_demo",
    "test_observed",
    "test_run",
    "test_serve",
    "test_machine_stateful",
    "test_model",
    "test_bench",
    "test_fenced",
    "test_contract",
    "test_fault_suite",
    "test_watch",
    "test_gateway_processes",
    "test_doctor",
    "test_watch_client",
)
"""Groups and files that take longest: were one begun last, a worker would be busy with it when the others are done."""


DATABASES = ("rows", "sql", "protect", "middleware_databases", "upstream")
"""Tests of resources that run over PostgreSQL and MariaDB; one worker starts those for all of them."""


AT_STORES = 3
"""How many workers run tests of stores at once. Those wait for most of their time (for a lease to run out, a server to
be given up, a leader to be elected): were all workers at them, the processors would be idle, and busy for all the
longer afterwards. The other workers run what needs a processor."""


def group(nodeid: str) -> str:
    """What shares servers: the tests of a store or of a kind of resource, or else those of a file."""
    path = PurePosixPath(nodeid.partition("::")[0])
    name = path.stem.removeprefix("test_")
    kind = name.partition("_")[0]
    if path.parent.name == "stores":
        return f"store {kind}"
    if path.parent.name == "along":
        return "resource along"
    if path.parent.name == "resources":
        return "resource databases" if name in DATABASES or kind in DATABASES[:3] else f"resource {kind}"
    return nodeid if path.stem == "test_kill" else path.stem


def turn(nodeid: str) -> int:
    names = (group(nodeid), PurePosixPath(nodeid.partition("::")[0]).stem)
    return next((number for number, name in enumerate(LONGEST) if name in names), len(LONGEST))


def schedule(config: pytest.Config, log: Any) -> object:
    """A scheduler that keeps groups together, so that their servers are started once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServers(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            others = [work for other, work in self.assigned_work.items() if other is not node]
            wanted = sum(map(_is_at_a_store, others)) < AT_STORES
            first = next((scope for scope in self.workqueue if _is_store(scope) == wanted), None)
            if first is not None:
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return ByServers(config, log)


def _is_store(scope: str) -> bool:
    return scope.startswith("store ")


def _is_at_a_store(work: Mapping[str, Mapping[str, bool]]) -> bool:
    """Whether a worker that was given this has tests of a store before it: each test says whether it is done."""
    return any(_is_store(scope) and not all(done.values()) for scope, done in work.items())
