"""etcd servers that the tests of the store share: one, and a cluster of three, each started once."""

from collections.abc import Iterator

import pytest

from fencegate.clock import SYSTEM
from tests.real import etcd as real


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.EtcdServer]:
    """One member; whoever kills it starts it again."""
    if reason := real.missing():
        pytest.skip(reason)
    server = real.EtcdServer(tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.terminate()


@pytest.fixture(scope="session")
def etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.EtcdCluster]:
    """Three members; whoever kills one starts it again."""
    if reason := real.missing():
        pytest.skip(reason)
    cluster = real.EtcdCluster(tmp_path_factory.mktemp("etcd")).start()
    yield cluster
    cluster.terminate()


@pytest.fixture
def etcd_url(etcd: real.EtcdServer) -> str:
    """A part of the server that no other test uses."""
    return f"{etcd.url}/{SYSTEM.random_id(4)}"
