"""The command line, called in a process that goes on."""

import logging
import sys
from pathlib import Path

import pytest

from fencegate.cli import main
from fencegate.clock import SYSTEM


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


def test_a_floor_that_would_lock_everyone_out_is_refused_where_tokens_are_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fence is never lowered, and nanoseconds are soon written for microseconds."""
    config = tmp_path / "fencegate.toml"
    config.write_text(
        f'[resources.ours]\nurl = "sqlite:///{tmp_path}/a.db"\nissuer = true\n'
        f'[resources.any]\nurl = "sqlite:///{tmp_path}/b.db"\n'
    )
    now_us = SYSTEM.now_us()
    for resource, value, code, said in (
        ("ours", now_us * 1000, 2, "microseconds"),
        ("ours", now_us, 0, f"nothing below {now_us}"),
        ("any", now_us * 1000, 0, f"nothing below {now_us * 1000}"),
        ("none", now_us, 2, "there are ours, any"),
        ("any", 0, 2, "Invalid value"),
        ("any", 2**63, 2, "Invalid value"),
    ):
        monkeypatch.setattr(sys, "argv", ["fencegate", "fence", "floor", resource, str(value), "--config", str(config)])
        with pytest.raises(SystemExit) as ended:
            main()
            sys.exit(0)
        told = capsys.readouterr()
        assert (ended.value.code or 0) == code, told
        assert said in told.out + told.err
