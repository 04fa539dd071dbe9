"""The model of a fenced mutex, with histories by hand: right ones, and wrong ones."""

from fencegate.verify.history import Hold
from fencegate.verify.linearizable import Operation, explain, is_linearizable
from fencegate.verify.mutex import AcquireOf, mutexes


def held(client: str, token: int, asked: int, told: int, until: int, *, shared: bool = False) -> Hold:
    return Hold(client, "k", token, asked, told, until, shared)


def of(*holds: Hold) -> list[Operation]:
    return mutexes(holds)["k"]


def test_one_after_the_other_with_rising_tokens() -> None:
    assert is_linearizable(of(held("a", 1, 0, 1, 5), held("b", 2, 2, 6, 9), held("a", 7, 9, 12, 20)))


def test_an_acquire_while_another_believes_is_not_explained() -> None:
    wrong = of(held("a", 1, 0, 1, 10), held("b", 2, 2, 5, 20), held("c", 3, 20, 21, 22))
    smallest = explain(wrong)
    assert smallest is not None
    assert [str(operation).split()[0] for operation in smallest] == ["a", "b", "a", "b"]


def test_whoever_heard_of_it_late_may_have_had_it_early() -> None:
    """b was told at 12, after a let go at 10, though it asked at 0."""
    assert is_linearizable(of(held("a", 1, 0, 1, 10), held("b", 2, 0, 12, 20)))


def test_whoever_was_stopped_until_its_lease_was_over_before_it_heard_of_it_never_believed() -> None:
    """a's lease was over at 10 by its own clock; it heard of it at 30, and b had it meanwhile."""
    assert is_linearizable(of(held("a", 1, 0, 30, 10), held("b", 2, 5, 12, 20)))
    assert not is_linearizable(of(held("a", 1, 0, 30, 10), held("b", 2, 5, 9, 20)))


def test_a_token_that_falls_is_not_explained() -> None:
    fell = of(held("z", 3, -9, -8, -7), held("a", 5, 0, 1, 2), held("b", 4, 0, 6, 9))  # asked at once, had one by one
    assert not is_linearizable(fell)
    smallest = explain(fell)
    assert smallest is not None
    assert sorted(str(operation).split()[0] for operation in smallest) == ["a", "a", "b", "b"]
    assert not is_linearizable(of(held("a", 5, 0, 1, 2), held("b", 5, 3, 4, 5)))


def test_an_acquire_of_unknown_outcome_may_have_happened_or_not() -> None:
    before, after = of(held("a", 1, 0, 1, 5)), of(held("b", 9, 10, 12, 20))
    unknown: Operation = AcquireOf("c", 99, 4, 6, None)
    assert is_linearizable([*before, unknown, *after])


def test_readers_hold_it_together_with_one_token_and_writers_alone() -> None:
    readers = [held("a", 4, 0, 1, 10, shared=True), held("b", 4, 2, 3, 12, shared=True)]
    assert is_linearizable(of(*readers, held("w", 5, 4, 13, 20)))
    assert not is_linearizable(of(*readers, held("w", 5, 4, 11, 20)))
    assert not is_linearizable(of(held("w", 5, 0, 1, 20), held("a", 6, 2, 3, 5, shared=True)))
    assert not is_linearizable(of(*readers, held("w", 4, 12, 13, 20)))


def test_a_reader_who_joins_when_the_first_has_stopped_believing_has_the_same_token() -> None:
    assert is_linearizable(of(held("a", 4, 0, 1, 2, shared=True), held("b", 4, 2, 3, 12, shared=True)))
