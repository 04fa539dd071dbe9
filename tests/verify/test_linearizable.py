"""The search for an order that explains what was seen."""

from fencegate.verify.linearizable import Operation, explain, is_linearizable
from fencegate.verify.registers import ReadOf, RefusedOf, WriteOf


def test_operations_one_after_the_other() -> None:
    done: list[Operation] = [WriteOf("a", 1, 0, 1, ("x",)), ReadOf("b", None, 2, 3, ("x",))]
    assert is_linearizable(done)


def test_a_read_that_shows_what_was_overwritten_before_it_began() -> None:
    done: list[Operation] = [
        WriteOf("a", 1, 0, 1, ("x",)),
        WriteOf("b", 2, 2, 3, ("x", "y")),
        ReadOf("c", None, 4, 5, ("x",)),
        ReadOf("c", None, 6, 7, ("x", "y")),
    ]
    assert not is_linearizable(done)
    smallest = explain(done)
    assert smallest is not None
    assert len(smallest) < len(done)
    assert not is_linearizable(smallest)


def test_operations_at_the_same_time_may_come_in_any_order() -> None:
    for seen in ("x", "y"):
        done: list[Operation] = [
            WriteOf("a", 1, 0, 10, ("x",)),
            WriteOf("b", 1, 0, 10, ("y",)),
            ReadOf("c", None, 11, 12, (seen,)),
        ]
        assert is_linearizable(done)


def test_a_write_of_unknown_outcome_may_have_happened_late_or_never() -> None:
    unknown = WriteOf("a", 1, 0, None, ("x",))
    assert is_linearizable([unknown, ReadOf("b", None, 5, 6, ()), ReadOf("b", None, 7, 8, ("x",))])
    assert is_linearizable([unknown, ReadOf("b", None, 5, 6, ())])
    assert not is_linearizable([unknown, ReadOf("b", None, 5, 6, ("x",)), ReadOf("b", None, 7, 8, ())])


def test_a_stale_write_that_was_accepted_is_not_explained() -> None:
    claim = ReadOf("b", 9, 0, 1, ())
    assert is_linearizable([claim, RefusedOf("a", 8, 2, 3)])
    assert not is_linearizable([claim, WriteOf("a", 8, 2, 3, ("late",))])
    assert not is_linearizable([RefusedOf("a", 8, 2, 3)])  # nobody had shown a higher token


def test_what_is_shown_holds_what_it_rests_on() -> None:
    """b claimed with 9 and read what a wrote with 8; then a wrote once more, and c saw that."""
    stale = WriteOf("a", 8, 5, 6, ("x", "late"))
    done: list[Operation] = [
        WriteOf("z", 3, -3, -2, ("w",)),
        ReadOf("z", 3, -1, 0, ("w",)),
        WriteOf("a", 8, 0, 1, ("x",)),
        ReadOf("b", 9, 2, 3, ("x",)),
        stale,
        ReadOf("c", None, 7, 8, ("x", "late")),
        RefusedOf("z", 3, 9, 10),
    ]
    smallest = explain(done)
    assert smallest is not None
    assert stale in smallest
    assert [str(operation).split()[0] for operation in smallest] == ["a", "b", "a"]


def test_a_long_history_without_overlaps_is_quick() -> None:
    done: list[Operation] = [WriteOf("a", place, 2 * place, 2 * place + 1, (str(place),)) for place in range(1, 400)]
    assert is_linearizable(done)
