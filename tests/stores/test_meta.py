"""No store goes without a suite, and none is loaded by those who don't use it."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from fencegate.testing.clock_suite import ClockSuite
from fencegate.testing.fault_suite import FaultSuite
from fencegate.testing.store_suite import StoreSuite
from fencegate_lockservice import stores
from tests import test_stores
from tests.stores import test_moved_clocks
from tests.stores.replica_suite import ReplicaSuite

HERE = Path(__file__).parent
ON_SERVERS = sorted(set(stores._MODULES.values()))
EMBEDDED = sorted({url.partition(":")[0] for url in stores.SUPPORTED} - set(stores._MODULES))
DRIVERS = {"redis", "hiredis", "psycopg", "aiomysql", "pymysql", "alembic", "kazoo"}


def test_there_are_stores_to_look_at() -> None:
    assert len(ON_SERVERS) >= 6
    assert EMBEDDED == ["memory", "sqlite"]


def test_every_scheme_that_is_offered_is_known() -> None:
    offered = {url.partition(":")[0] for url in stores.SUPPORTED}
    assert offered - set(EMBEDDED) <= set(stores._MODULES)


@pytest.mark.parametrize("suite", [StoreSuite, FaultSuite, ReplicaSuite])
@pytest.mark.parametrize("store", ON_SERVERS)
def test_every_store_on_a_server_runs_every_suite(store: str, suite: type) -> None:
    """The tests of a store are in `test_STORE.py` and `test_STORE_….py`."""
    files = [path.stem for path in HERE.glob("test_*.py") if path.stem.removeprefix("test_").split("_")[0] == store]
    found = [name for file in files for name in _classes(importlib.import_module(f"tests.stores.{file}"), suite)]
    assert found, f"no class in tests/stores/test_{store}*.py is a {suite.__name__}"


@pytest.mark.parametrize("store", ON_SERVERS)
def test_every_store_whose_clock_leases_go_by_is_tried_with_that_clock_moved(store: str) -> None:
    module = importlib.import_module(f"{stores.__name__}.{store}.store")
    (made,) = [made for name, made in vars(module).items() if name.lower() == f"{store}store"]
    found = [name for name in _classes(test_moved_clocks, ClockSuite) if name.lower().startswith(f"test{store}")]
    assert bool(found) == made.capabilities.clock


@pytest.mark.parametrize("store", EMBEDDED)
def test_every_embedded_store_runs_the_store_suite(store: str) -> None:
    found = _classes(test_stores, StoreSuite)
    assert [name for name in found if store in name.lower()], f"no class in tests/test_stores.py tests {store}"


def _classes(module: object, suite: type) -> list[str]:
    """The test classes of a module that run this suite."""
    return [
        name
        for name, found in vars(module).items()
        if name.startswith("Test") and isinstance(found, type) and issubclass(found, suite)
    ]


@pytest.mark.parametrize("module", ["fencegate", "fencegate.cli", "fencegate_lockservice.stores"])
def test_no_driver_of_a_store_is_loaded_before_it_is_used(module: str) -> None:
    source = f"import sys, {module}; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=True)
    assert set(done.stdout.split()) & DRIVERS == set()
