"""The command line, called in a process that goes on."""

import logging
import sys

import pytest

from fencegate.cli import main


@pytest.mark.parametrize(
    ("words", "code"), [(["--version"], 0), (["verify", "--simulate", "--runs", "1", "--json"], 0), (["nonsense"], 2)]
)
def test_logging_is_as_it_was_when_a_command_is_over(
    words: list[str], code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["fencegate", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    logging.getLogger("fencegate.store").warning("a store of this process is unsafe")
    assert "a store of this process is unsafe" in caplog.text
