"""`fencegate protect` as the tests of all databases call it, and clients that know nothing of Fencegate."""

import subprocess
import sys
from typing import NamedTuple

import pytest

from fencegate.cli import main


class Answer(NamedTuple):
    code: int
    out: str
    err: str


class Command:
    """The command in this process: to start Python for each would take longer than most tests."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._url = url
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("COLUMNS", "200")

    def __call__(self, *arguments: str, code: int = 0) -> Answer:
        self._monkeypatch.setattr(sys, "argv", ["fencegate", "protect", self._url, *arguments])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
            sys.exit(0)
        got = Answer(int(ended.value.code or 0), *self._capsys.readouterr())
        assert got.code == code, got
        return got


def run_script(client: list[str], script: str) -> None:
    """Give a script to the database's own command-line client."""
    done = subprocess.run(client, input=script, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
