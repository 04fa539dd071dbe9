"""Every rule of the lock, in one pure function.

How to think of it. A lock key has one record: who holds it, whom it is offered to, who waits, and the last token. A
command is judged against that record and the time, and the answer is data: what to write, what to tell the caller,
what to log. Nothing here acts. Whoever calls commits the writes on condition that the entries it showed us are
unchanged, or comes back with newer ones.

Each command goes through the same three steps:
  1. time passes: leases that ran out end, an offer that lapsed goes back, places that nobody came back for are dropped;
  2. the command itself;
  3. hand over: the first waiter who is there is offered the lock, if it fits beside those who hold it; one offer at a
     time, and taking it up brings the next.

Some commands need to see more than one record: of a session, of the locks above, of all locks that are asked for at
once. What was seen is compared in the commit, so a decision holds for all of it or for nothing.

The token is minted in one place, `LockTurn.lowest_token`: one above everything this commit has seen, and not below the
clock. Order within a key comes from `last + 1` under compare-and-set, with no clock in the argument; the clock only
lifts it, so that tokens go on rising after a record, or a whole store, was lost.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Command,
    Confirm,
    Drop,
    EndSession,
    Expire,
    ExpireSession,
    ForceRelease,
    Forget,
    ForgetSession,
    HandOverAll,
    Leave,
    LeaveAll,
    Need,
    OpenSession,
    Outcome,
    Release,
    ReleaseAll,
    Renew,
    RenewAll,
    RenewSession,
    Step,
    TakeUp,
    TakeUpAll,
)
from fencegate.core.machine import rules, sessions, several
from fencegate.core.machine.lock import LockTurn
from fencegate.core.machine.looking import Below, live_holds, live_session, look_below, sessions_of, waiting, wakes_at
from fencegate.core.machine.refusals import free, held_below
from fencegate.core.machine.shifting import not_later_than, shifted
from fencegate.core.machine.turn import Missing, Turn
from fencegate.core.model import DEFAULT_LIMITS, Limits, Record
from fencegate.core.ports import Interval

__all__ = [
    "Below",
    "free",
    "held_below",
    "live_holds",
    "live_session",
    "look_below",
    "not_later_than",
    "sessions_of",
    "shifted",
    "transition",
    "waiting",
    "wakes_at",
]

_OF_ONE_LOCK: Mapping[type, Callable[[LockTurn, Any], Outcome]] = {
    Acquire: rules.acquire,
    TakeUp: rules.take_up,
    Confirm: rules.confirm,
    Leave: rules.leave,
    Renew: rules.renew,
    Release: rules.release,
    ForceRelease: rules.force_release,
    Drop: rules.drop,
    Expire: rules.expire,
    Forget: rules.forget,
}
_OTHERS: Mapping[type, Callable[[Turn, Any], Step]] = {
    AcquireAll: several.acquire_all,
    HandOverAll: several.hand_over_all,
    TakeUpAll: several.take_up_all,
    LeaveAll: several.leave_all,
    RenewAll: several.renew_all,
    ReleaseAll: several.release_all,
    OpenSession: sessions.open_session,
    RenewSession: sessions.renew_session,
    EndSession: sessions.end_session,
    ExpireSession: sessions.expire_session,
    ForgetSession: sessions.forget_session,
}


def transition(
    records: Mapping[str, Record | None], command: Command, now: Interval, limits: Limits = DEFAULT_LIMITS
) -> Step | Need:
    """What `command` does to these entries at `now`; or which entries it needs to know (None stands for 'absent')."""
    turn = Turn(records, now, limits)
    try:
        rule = _OF_ONE_LOCK.get(type(command))
        if rule is None:
            return _OTHERS[type(command)](turn, command)
        lock = LockTurn(turn, command.lock_key)  # type: ignore[union-attr]
        outcome = rule(lock, command)
        lock.hand_over()
        return turn.step(outcome, lock)
    except Missing as missing:
        return Need(missing.entries)
