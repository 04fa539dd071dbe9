"""Which tests run in one worker, one after the other, and which begin first."""

from pathlib import PurePosixPath
from typing import Any

import pytest

LONGEST = (
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
"""Files that take longest: were one of them begun last, a worker would be busy with it when the others are done."""


DATABASES = ("rows", "sql", "protect", "middleware_databases", "upstream")
"""Tests of resources that run over PostgreSQL and MariaDB; one worker starts those for all of them."""


def group(nodeid: str) -> str:
    """What shares servers: the tests of a store or of a kind of resource, or else those of a file."""
    path = PurePosixPath(nodeid.partition("::")[0])
    name = path.stem.removeprefix("test_")
    kind = name.partition("_")[0]
    if path.parent.name == "stores":
        return f"store {kind}"
    if path.parent.name == "resources":
        return "resource databases" if name in DATABASES or kind in DATABASES[:3] else f"resource {kind}"
    return nodeid if path.stem == "test_kill" else path.stem


def turn(nodeid: str) -> int:
    path = PurePosixPath(nodeid.partition("::")[0])
    if path.parent.name == "stores":
        return -2
    if group(nodeid) in ("resource databases", "resource bucket"):
        return -1
    return LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST)


def schedule(config: pytest.Config, log: Any) -> object:
    """A scheduler that keeps groups together, so that their servers are started once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServers(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return ByServers(config, log)
