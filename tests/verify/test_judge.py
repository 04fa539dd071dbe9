"""The judge, with histories by hand: what must be found, and what must not."""

from dataclasses import replace

import pytest

from fencegate.verify.history import History, Hold, InVain, Read, Told, Write
from fencegate.verify.judge import judge

A, B = "k", "l"


def wrote(
    client: str,
    token: int,
    at: int,
    value: tuple[str, ...],
    told: Told = "done",
    key: str = A,
    group: tuple[str, ...] = (),
) -> Write:
    return Write(client, key, token, value[-1] if value else "gone", at, at + 1, told, value, group)


def appended(
    client: str, token: int, at: int, update: str, told: Told = "done", key: str = A, group: tuple[str, ...] = ()
) -> Write:
    return Write(client, key, token, update, at, at + 1, told, group=group)


def read(client: str, token: int | None, at: int, updates: tuple[str, ...] | None) -> Read:
    return Read(client, A, token, at, at + 1, updates)


def found(history: History) -> list[str]:
    return [violation.invariant for violation in judge(history)]


class TestRegister:
    def test_overwritten_values_are_no_lost_updates(self) -> None:
        history = History(writes=[wrote("a", 1, 0, ("x",)), wrote("b", 2, 4, ("y",))], final={A: ("y",)})
        assert not judge(history)

    def test_a_read_of_what_was_overwritten(self) -> None:
        writes = [wrote("a", 1, 0, ("x",)), wrote("b", 2, 4, ("y",))]
        history = History(writes=writes, reads=[read("b", 2, 6, ("x",))], final={A: ("y",)})
        assert found(history) == ["linearizable"]

    def test_a_write_of_unknown_outcome_may_come_late(self) -> None:
        writes = [wrote("a", 2, 0, ("x",), "unknown"), wrote("b", 2, 4, ("y",))]
        for seen in ("x", "y"):
            assert not judge(History(writes=writes, reads=[read("b", 2, 6, (seen,))], final={A: (seen,)}))

    def test_but_not_below_a_token_that_was_shown_before_it(self) -> None:
        writes = [wrote("b", 2, 0, ("y",)), wrote("a", 1, 4, ("x",), "unknown")]
        history = History(writes=writes, reads=[read("c", 3, 8, ("x",))], final={A: ("x",)})
        assert found(history) == ["linearizable"]

    def test_a_refusal_without_cause(self) -> None:
        """The holder's second write under one token was refused: `<` where `<=` belongs."""
        writes = [wrote("a", 1, 0, ("x",)), wrote("a", 1, 4, ("y",), "refused")]
        assert found(History(writes=writes, final={A: ("x",)})) == ["linearizable"]

    def test_a_delete_keeps_the_mark(self) -> None:
        deleted = [wrote("b", 2, 0, ()), wrote("a", 1, 4, ("x",))]
        assert found(History(writes=deleted, final={A: ("x",)})) == ["I3"]
        assert not judge(History(writes=[wrote("b", 2, 0, ()), wrote("c", 3, 4, ("x",))], final={A: ("x",)}))

    def test_a_claim_that_was_answered_counts_as_shown(self) -> None:
        history = History(writes=[wrote("a", 1, 4, ("x",))], reads=[read("b", 2, 0, None)], final={A: ("x",)})
        assert found(history) == ["I3"]


class TestCounter:
    @pytest.mark.parametrize(("final", "wrong"), [("1", True), ("2", False), ("3", False), ("4", True)])
    def test_each_acknowledged_write_counts_once_and_each_unknown_one_at_most(self, final: str, wrong: bool) -> None:
        writes = [
            wrote("a", 1, 0, ("1",)),
            wrote("b", 2, 4, ("2",)),
            wrote("c", 3, 8, ("3",), "unknown"),
            wrote("d", 1, 9, ("2",), "refused"),
        ]
        history = History(writes=writes, final={A: (final,)}, counters=(A,))
        assert ("I4" in found(history)) is wrong


class TestSeveral:
    def test_all_or_none(self) -> None:
        keys = (A, B)
        writes = [appended("a", 1, 0, "x", "unknown", key, keys) for key in keys]
        assert not judge(History(writes=writes, final={A: ("x",), B: ("x",)}))
        assert not judge(History(writes=writes, final={A: (), B: ()}))
        assert found(History(writes=writes, final={A: ("x",), B: ()})) == ["I4"]

    def test_it_is_refused_for_the_sake_of_one_of_them(self) -> None:
        keys = (A, B)
        refused = [appended("a", 1, 4, "x", "refused", key, keys) for key in keys]
        later = appended("b", 2, 0, "y", key=B)
        assert not judge(History(writes=[later, *refused], final={A: (), B: ("y",)}))
        assert found(History(writes=refused, final={A: (), B: ()})) == ["I4"]


class TestHolds:
    def test_readers_share_a_token_and_writers_do_not(self) -> None:
        readers = [Hold(who, A, 4, 0, 1, 10, shared=True) for who in "ab"]
        assert not judge(History(holds=readers))
        assert found(History(holds=[*readers, Hold("w", A, 4, 11, 12, 20)])) == ["I1", "I1"]
        assert found(History(holds=[*readers, Hold("w", A, 5, 2, 8, 20)])) == ["I5"]

    def test_a_reader_who_joins_a_group_that_the_store_forgot_the_end_of(self) -> None:
        reader, writer = Hold("a", A, 4, 0, 1, 2, shared=True), Hold("w", A, 5, 3, 4, 9)
        joined, anew = Hold("b", A, 4, 6, 7, 8, shared=True), Hold("b", A, 3, 6, 7, 8, shared=True)
        assert not judge(History(holds=[reader, writer, joined], commits_lost=True))
        assert "I1" in found(History(holds=[reader, writer, joined]))
        assert found(History(holds=[reader, writer, anew], commits_lost=True)) == ["I1"]

    def test_a_token_from_before_the_commit(self) -> None:
        """Both asked at once; who had it later has the lower token."""
        assert found(History(holds=[Hold("a", A, 5, 0, 1, 2), Hold("b", A, 4, 0, 6, 9)])) == ["linearizable"]

    def test_where_clocks_jump_leases_may_overlap_but_tokens_rise(self) -> None:
        both = [Hold("a", A, 1, 0, 1, 10), Hold("b", A, 2, 2, 5, 20)]
        assert found(History(holds=both)) == ["I5"]
        assert not judge(History(holds=both, clocks_moved=True))


class TestWaiting:
    def test_nobody_waits_for_what_is_free(self) -> None:
        second = 1_000_000
        busy = [Hold("a", A, 1, 0, 0, 3 * second)]
        assert not judge(History(holds=busy, in_vain=[InVain("b", A, 0, 9 * second)], calm_from_us=0))
        assert found(History(holds=busy, in_vain=[InVain("b", A, 0, 11 * second)], calm_from_us=0)) == ["I6"]
        assert not judge(History(holds=busy, in_vain=[InVain("b", A, 0, 11 * second)]))

    def test_nobody_is_overtaken(self) -> None:
        second = 1_000_000
        first, later = Hold("a", A, 1, 0, 1, 2 * second), Hold("b", A, 2, second, 2 * second, 3 * second)
        in_vain, waited = InVain("c", A, 0, 4 * second), Hold("c", A, 3, 0, 3 * second, 4 * second)
        assert found(History(holds=[first, later], in_vain=[in_vain], in_turn=True)) == ["I6"]
        assert found(History(holds=[first, later, waited], in_turn=True)) == ["I6"]
        assert not judge(History(holds=[first, later, waited]))

    def test_who_comes_at_the_same_time_or_when_the_other_leaves_overtakes_nobody(self) -> None:
        second = 1_000_000
        first, later = Hold("a", A, 1, 0, 1, 2 * second), Hold("b", A, 2, second, 2 * second, 3 * second)
        assert not judge(History(holds=[first, later], in_vain=[InVain("c", A, 0, later.granted_us + 9)], in_turn=True))
        together = replace(later, asked_us=second // 2)
        assert not judge(History(holds=[first, together], in_vain=[InVain("c", A, 0, 4 * second)], in_turn=True))

    def test_of_readers_who_are_let_in_together_any_may_hear_of_it_first(self) -> None:
        second = 1_000_000
        writer = Hold("a", A, 1, 0, 1, 2 * second)
        late, early = (
            Hold("b", A, 2, second, 2 * second, 3 * second, shared=True),
            Hold("c", A, 2, 0, 2 * second + 9, 3 * second, shared=True),
        )
        assert not judge(History(holds=[writer, late, early], in_turn=True))
        of_another_group = replace(late, token=3, asked_us=4 * second, granted_us=5 * second)
        waiting = Hold("d", A, 4, 3 * second, 5 * second + 9, 6 * second)
        assert "I6" in found(History(holds=[of_another_group, waiting], in_turn=True))

    def test_where_nothing_goes_wrong_a_lock_that_comes_free_is_had_at_once(self) -> None:
        second = 1_000_000
        late = [Hold("a", A, 1, 0, 1, second), Hold("b", A, 2, 2, 2 * second, 3 * second)]
        assert found(History(holds=late, in_turn=True)) == ["I6"]
        assert not judge(History(holds=late))
        several = [
            *late,
            replace(late[0], lock_key=B),
            replace(late[1], lock_key=B),
        ]  # another of them may have kept it
        assert not judge(History(holds=several, in_turn=True))


class TestCommits:
    def test_what_was_given_up_for_lost_stays_so(self) -> None:
        assert found(History(came_back=["c1"])) == ["I4"]

    def test_but_for_a_store_that_forgets_or_whose_clock_jumps(self) -> None:
        assert not judge(History(came_back=["c1"], commits_lost=True))
        assert not judge(History(came_back=["c1"], clocks_moved=True))
