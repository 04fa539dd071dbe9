"""What the tests of all stores share."""

import pytest

from tests.stores.redlock_fixtures import five, lasting_five, redlock_url

__all__ = ["five", "lasting_five", "redlock_url"]

pytest.register_assert_rewrite("tests.stores.replica", "tests.stores.replica_suite", "tests.stores.rolling")
