"""The stale check itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.core.errors import StaleToken
from fencegate.core.fence import admit
from fencegate.core.token import MAX_TOKEN

tokens = st.integers(1, MAX_TOKEN)


@given(tokens)
def test_a_fence_that_has_seen_nothing_admits_any_token(token: int) -> None:
    assert admit(token, 0) == token


@given(tokens)
def test_equal_is_admitted(token: int) -> None:
    assert admit(token, token) == token


@given(tokens, tokens)
def test_exactly_the_lower_ones_are_refused_and_both_numbers_are_told(token: int, mark: int) -> None:
    if token >= mark:
        assert admit(token, mark) == token
        return
    with pytest.raises(StaleToken) as refused:
        admit(token, mark)
    assert (refused.value.token, refused.value.highest) == (token, mark)
    assert refused.value.members == {"token": str(token), "highestToken": str(mark)}


@given(st.lists(tokens, min_size=1))
def test_the_accepted_tokens_never_decrease_and_end_at_the_highest_seen(shown: list[int]) -> None:
    mark, accepted = 0, []
    for token in shown:
        try:
            mark = admit(token, mark)
        except StaleToken:
            continue
        accepted.append(token)
    assert accepted == sorted(accepted)
    assert mark == max(shown)
