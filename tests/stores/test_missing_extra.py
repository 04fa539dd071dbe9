"""What is not installed is told with how to get it, wherever a URL needs it; what needs nothing goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import sys
for name in ("redis", "hiredis", "psycopg", "aiomysql", "pymysql", "alembic", "kazoo", "obstore", "pytest"):
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
    told = _told(2, "locks", "--url", url)
    assert f"pip install 'fencegate[{extra}]'" in told
    assert "secret" not in told


@pytest.mark.parametrize("command", ["demo", "verify --real"])
@pytest.mark.parametrize(
    ("url", "extra"),
    [("redis://:secret@127.0.0.1:1", "redis"), ("s3://bucket/prefix", "s3")],
)
def test_the_missing_extra_of_a_resource_is_named(command: str, url: str, extra: str, tmp_path: Path) -> None:
    told = _told(2, *command.split(), "--resource", url, folder=tmp_path)
    assert f"pip install 'fencegate[{extra}]'" in told
    assert "secret" not in told


def test_the_missing_extra_of_a_server_that_would_be_started_is_named() -> None:
    assert "pip install 'fencegate[redis]'" in _told(3, "demo", "--store", "redis")
    assert "pip install 'fencegate[s3]'" in _told(3, "verify", "--real", "--resource", "s3")


def test_the_campaign_needs_nothing_but_what_fencegate_brings() -> None:
    _told(0, "verify", "--simulate", "--seed", "0", "--runs", "4", "--jobs", "1")


def _told(code: int, *arguments: str, folder: Path | None = None) -> str:
    """What the command says, without what extras bring, when it ends with this code."""
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr
