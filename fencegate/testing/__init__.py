"""The suites that every store and every adapter must pass, shipped so that others can test their own."""

import sys

if pytest := sys.modules.get("pytest"):  # `fencegate verify` takes the fault proxy from here, and needs no pytest
    pytest.register_assert_rewrite(
        "fencegate.testing.resource_suite",
        "fencegate.testing.store_suite",
        "fencegate.testing.store_life_suite",
        "fencegate.testing.change_log_suite",
        "fencegate.testing.engine_suite",
        "fencegate.testing.fault_suite",
        "fencegate.testing.clock_suite",
    )
