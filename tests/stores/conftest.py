"""What the tests of all stores share."""

import pytest

from tests.stores.etcd_fixtures import etcd, etcd_cluster, etcd_url
from tests.stores.redlock_fixtures import five, lasting_five, redlock_url

__all__ = ["etcd", "etcd_cluster", "etcd_url", "five", "lasting_five", "redlock_url"]

pytest.register_assert_rewrite("tests.stores.replica", "tests.stores.replica_suite", "tests.stores.rolling")
