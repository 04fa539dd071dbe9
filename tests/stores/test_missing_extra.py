"""A store whose driver is not installed says how to get it, wherever its URL is used."""

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
for name in ("redis", "hiredis", "psycopg", "aiomysql", "pymysql", "alembic", "kazoo"):
    sys.modules[name] = None
from fencegate.cli import main
sys.argv = ["fencegate", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("redis://:secret@127.0.0.1:1", "redis"),
        ("redlock://:secret@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "redis"),
        ("postgresql://u:secret@127.0.0.1:1/x", "postgres"),
        ("mysql://u:secret@127.0.0.1:1/x", "mysql"),
    ],
)
def test_the_missing_extra_is_named(url: str, extra: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, "locks", "--url", url], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'fencegate[{extra}]'" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
