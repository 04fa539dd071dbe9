"""A token is an ordered integer with a strict wire form; and the stale check, which compares it with a mark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.core.errors import InvalidToken, StaleToken
from fencegate.core.fence import admit
from fencegate.core.token import MAX_TOKEN, Token, token_headers

tokens = st.integers(1, MAX_TOKEN)


@given(tokens)
def test_what_is_written_is_read_back(value: int) -> None:
    assert Token.parse(Token(value).wire) == value
    assert str(Token(value)) == Token(value).wire == str(value)


@given(tokens, tokens)
def test_tokens_are_ordered_as_their_numbers_are(one: int, two: int) -> None:
    assert (Token(one) < Token(two)) == (one < two)
    assert (Token(one) == Token(two)) == (one == two)
    assert max(Token(one), Token(two)) == max(one, two)


@pytest.mark.parametrize("text", ["1", "9", "34", "9007199254740993", str(MAX_TOKEN)])
def test_plain_digits_are_a_token(text: str) -> None:
    assert Token.parse(text).wire == text


@pytest.mark.parametrize(
    "text",
    [
        "", "0", "00", "007", "-1", "-0", "+5", " 5", "5 ", "5\n", "\t5", "5.0", "1e3", "0x10", "0b1", "1_000", "1,000",
        "\u0663", "\uff15", "5\u0663", "\u2167", "\u00b2", "five", "None", "nan", "inf", "1;2", "1, 2", "5\x00",
        str(MAX_TOKEN + 1), "9" * 19, "1" * 20, "1" * 5000,
    ],
)  # fmt: skip
def test_anything_else_is_not(text: str) -> None:
    with pytest.raises(InvalidToken):
        Token.parse(text)


@given(st.text(max_size=25))
def test_no_text_that_is_read_differs_from_what_is_written(text: str) -> None:
    try:
        token = Token.parse(text)
    except InvalidToken:
        return
    assert token.wire == text
    assert 1 <= token <= MAX_TOKEN


@pytest.mark.parametrize("value", [0, -1, MAX_TOKEN + 1, 2**64, True, False, 1.0, "1", None])
def test_only_whole_numbers_in_range_are_tokens(value: object) -> None:
    with pytest.raises(InvalidToken):
        Token(value)  # type: ignore[arg-type]


@given(tokens, st.integers(0, MAX_TOKEN))
def test_a_fence_admits_what_is_not_below_its_mark_and_never_goes_down(token: int, mark: int) -> None:
    if token >= mark:
        assert admit(token, mark) == token >= mark
    else:
        with pytest.raises(StaleToken) as refused:
            admit(token, mark)
        assert (refused.value.token, refused.value.highest) == (token, mark)


def test_equal_is_admitted_and_one_less_is_not() -> None:
    assert admit(2**53 + 1, 2**53 + 1) == 2**53 + 1
    with pytest.raises(StaleToken):
        admit(2**53, 2**53 + 1)


@pytest.mark.parametrize("lock_key", ["job:x", "a, b", "a/b#3"])
def test_a_token_goes_with_the_name_of_its_lock(lock_key: str) -> None:
    assert token_headers("34", lock_key) == {"Fencing-Token": "34", "Fencing-Lock": lock_key}


@pytest.mark.parametrize("lock_key", [" job", "job ", "jób", "\u3000job"])
def test_a_lock_that_no_header_can_name_is_not_named(lock_key: str) -> None:
    assert token_headers("34", lock_key) == {"Fencing-Token": "34"}
