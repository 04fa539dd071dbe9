"""How calls that take a token are done: together in one transaction where they can be, else each in its own."""

import contextlib
from collections.abc import Iterable

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from fencegate.clock import Clock
from fencegate.core.errors import (
    FencegateError,
    InvalidInput,
    ResourceUnavailable,
    StaleToken,
)
from fencegate.core.ports import Row, Seen
from fencegate.failpoint import reach
from fencegate_adapters.sql import fences
from fencegate_adapters.sql.dialect import Dialect, cause
from fencegate_adapters.sql.group import Group, Refused, admitted, decide, row_after
from fencegate_adapters.sql.marks import FenceTable, Marks
from fencegate_adapters.sql.plain import NotPlain, PlainGroup, PlainPatches
from fencegate_adapters.sql.protect.naming import name_tokens
from fencegate_adapters.sql.shape import Change, Shape, Unsure, etag_of
from fencegate_adapters.sql.transactions import CommitFailed, Transactions, first_of, refused, transient
from fencegate_adapters.sql.work import Done, Outcome, Work, answer

GROUP_WAIT_MS = 250
"""How long a group waits for a row that somebody outside keeps locked: then each of it goes its own way."""
TRIES = 3


class Writer:
    """`together` and `alone` answer what they finish, never raise, and answer nothing before COMMIT."""

    def __init__(
        self,
        transactions: Transactions,
        dialect: Dialect,
        shape: Shape,
        marks: Marks,
        record: fences.Record,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._dialect = dialect
        self._shape = shape
        self._marks = marks
        self._record = record
        self._clock = clock
        self._plain = PlainPatches(shape, record)

    # --- together ----------------------------------------------------------------------------------------------------

    def together(self, works: list[Work]) -> list[Work]:
        """One transaction for all of them. Those that it returns are not answered, and nothing of them was done."""
        in_time = self._in_time(works)
        if not in_time:
            return []
        try:
            plain = self._plain.group(in_time) if isinstance(self._marks, FenceTable) else None
            if plain is not None:
                with contextlib.suppress(NotPlain):
                    return self._grouped(plain, in_time)
            return self._grouped(Group(self._shape, self._marks, self._record), in_time)
        except Exception:  # whatever it was, nothing is written, and it may be the matter of one of them only
            return in_time

    def _grouped(self, group: Group | PlainGroup, works: list[Work]) -> list[Work]:
        wait_ms = self._left_ms(min(work.deadline_us for work in works))
        group_wait_ms = wait_ms if self._dialect.writers == 1 else min(GROUP_WAIT_MS, wait_ms)
        try:
            self._transactions.run(
                lambda connection: group.run(connection, works, group_wait_ms),
                group_wait_ms,
                lambda: self._reach(works),
            )
        except CommitFailed as failed:
            answer((work, _uncertain(outcome, failed)) for work, outcome in group.outcomes.items())
            return group.left
        answer(group.outcomes.items())
        self._plain.remember(group.outcomes)
        return group.left

    def _in_time(self, works: Iterable[Work]) -> list[Work]:
        in_time: list[Work] = []
        late: list[Work] = []
        for work in works:
            (in_time if self._left_ms(work.deadline_us) > 0 else late).append(work)
        answer((work, _too_late()) for work in late)
        return in_time

    def _left_ms(self, deadline_us: int) -> int:
        return (deadline_us - self._clock.monotonic_us()) // 1000

    @staticmethod
    def _reach(works: Iterable[Work]) -> None:
        for work in works:
            if work.writes and not work.reached:
                work.reached = True
                reach("resource.write")

    # --- alone -------------------------------------------------------------------------------------------------------

    def alone(self, work: Work) -> None:
        try:
            answer([(work, self._alone(work))])
        except Exception as error:
            answer([(work, error)])

    def _alone(self, work: Work) -> Outcome:
        for left in reversed(range(TRIES)):
            wait_ms = self._left_ms(work.deadline_us)
            if wait_ms <= 0:
                return _too_late()
            found: list[Outcome] = []
            try:
                self._transactions.run(
                    lambda connection: found.append(self._do(connection, work)),  # noqa: B023 - run at once
                    wait_ms,
                    lambda: self._reach([work]),
                )
                return found[0]
            except CommitFailed as failed:
                return _uncertain(found[0], failed)
            except IntegrityError as error:  # judged at COMMIT, which took the mark back too
                return self._refused_at_commit(work, error)
            except SQLAlchemyError as error:
                first = first_of(error)
                if not (left and transient(first)):
                    return ResourceUnavailable(f"the database failed: {cause(first)}")
        raise AssertionError

    def _refused_at_commit(self, work: Work, error: IntegrityError) -> Outcome:
        try:
            wait_ms = max(1, self._left_ms(work.deadline_us))
            self._transactions.run(lambda connection: self._admit(connection, work), wait_ms)
        except (CommitFailed, SQLAlchemyError) as failed:  # whether the mark is raised is not known, but the row is not
            return ResourceUnavailable(f"the database failed: {cause(failed)}")
        return self._dialect.refusal(error)

    def _admit(self, connection: Connection, work: Work) -> Seen:
        deletes = any(write.op == "delete" for write in work.writes)
        mark = self._marks.raise_one(connection, work.fence, work.token, deletes=deletes)
        return admitted(work.token, mark, fences.floor_of(connection, self._record), self._record.mode)

    def _do(self, connection: Connection, work: Work) -> Outcome:
        """A refusal that it returns is committed like a result: the mark stays."""
        seen = self._admit(connection, work)
        try:
            if work.reads is not None:
                key = self._shape.checked(work.reads)
                row = self._shape.fetch(connection, [key]).get(key)
                return Done([row], Seen(seen.mark, etag_of(row), shadow=seen.shadow))
            if not work.writes:
                return Done([], seen)
            name_tokens(connection, {work.fence: work.token})
            with connection.begin_nested():
                return self._write(connection, work, seen)
        except Refused as refusal:
            return refusal
        except Unsure:
            return InvalidInput("row", "was not kept as it was sent: a trigger, perhaps, prevented it or moved it")
        except DBAPIError as error:
            if not refused(error):
                raise
            return self._dialect.refusal(error)

    def _write(self, connection: Connection, work: Work, seen: Seen) -> Done:
        """One after the other: a later write may be about the row of an earlier one."""
        rows: list[Row | None] = []
        for write in work.writes:
            key = self._shape.checked(write.key)
            old = self._shape.fetch(connection, [key], lock=True).get(key)
            change = decide(self._shape, write, key, old, work.token)
            told = self._shape.apply(connection, [change])
            if not (change.known or told):
                self._check_told(change)
                told = self._shape.fetch(connection, [key])
            new = row_after(change, told, self._shape)
            rows.append(new)
            seen = Seen(seen.mark, etag_of(new), created=old is None and new is not None, shadow=seen.shadow)
        return Done(rows, seen)

    def _check_told(self, change: Change) -> None:
        if change.kind == "update" and self._shape.tells_updates:
            raise Unsure


def _too_late() -> ResourceUnavailable:
    return ResourceUnavailable("others kept the database busy for too long: nothing was written; retry")


def _uncertain(outcome: Outcome, failed: CommitFailed) -> FencegateError:
    """What is known of a call when COMMIT failed. A stale token was refused by what others had committed."""
    if isinstance(outcome, StaleToken):
        return outcome
    return ResourceUnavailable(str(failed), outcome="unknown" if isinstance(outcome, Done) else "not-written")
