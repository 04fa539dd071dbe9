"""Durations as people write them."""

import pytest

from fencegate.core.durations import number_of_seconds, seconds
from fencegate.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("written", "length_s"),
    [
        ("500ms", 0.5),
        ("1ms", 0.001),
        ("30s", 30.0),
        ("10m", 600.0),
        ("1.5h", 5400.0),
        ("7d", 604_800.0),
        ("0", 0.0),
        ("2.25", 2.25),
        (" 5 s ", 5.0),
        (3, 3.0),
        (0.25, 0.25),
        (float("inf"), float("inf")),
    ],
)
def test_a_duration_is_read(written: object, length_s: float) -> None:
    assert seconds(written) == length_s


@pytest.mark.parametrize(
    "written",
    [
        *("", "s", "-1s", "+1", "1e3", "1_000", "\u0663s", "inf", "nan", "1w", "1 000", "1s2", "1.", ".5", "9" * 13),
        *("1" * 5000, -1, -0.5, float("nan"), True, None, [], b"1s"),
    ],
)
def test_what_is_no_duration_is_refused_by_name(written: object) -> None:
    with pytest.raises(InvalidInput, match=r"^locks\.history: "):
        seconds(written, "locks.history")


@pytest.mark.parametrize("value", ["1", "30s", None, True, -1, float("nan")])
def test_code_gives_numbers(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^ttl: "):
        number_of_seconds(value, "ttl")
