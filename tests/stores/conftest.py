"""What the tests of all stores share."""

import pytest

from tests.stores.etcd_fixtures import etcd, etcd_cluster, etcd_url, own_etcd
from tests.stores.mysql_fixtures import mysql_database, mysql_server, mysql_url, new_mysql_database
from tests.stores.postgres_fixtures import (
    postgres_fresh_url,
    postgres_server,
    postgres_shared_url,
    postgres_store,
    postgres_url,
)
from tests.stores.redlock_fixtures import five, lasting_five, redlock_url
from tests.stores.zookeeper_fixtures import zookeeper_ensemble, zookeeper_server

__all__ = [
    "etcd",
    "etcd_cluster",
    "etcd_url",
    "five",
    "lasting_five",
    "mysql_database",
    "mysql_server",
    "mysql_url",
    "new_mysql_database",
    "own_etcd",
    "postgres_fresh_url",
    "postgres_server",
    "postgres_shared_url",
    "postgres_store",
    "postgres_url",
    "redlock_url",
    "zookeeper_ensemble",
    "zookeeper_server",
]

pytest.register_assert_rewrite("tests.stores.replica", "tests.stores.replica_suite", "tests.stores.rolling")
