"""The commands about several locks, in one commit: all of it happens, or nothing does.

Whoever waits for several locks has one place in the queue of each, made in one commit, so that two such waiters stand
in the same order everywhere, and neither can wait for the other. A place like that keeps those behind it waiting, as
any place does; the lock is offered when all of them can be.
"""

from dataclasses import replace

from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Granted,
    GrantedAll,
    HandOverAll,
    LeaveAll,
    Nothing,
    Outcome,
    Queued,
    Refused,
    ReleaseAll,
    Released,
    ReleasedAll,
    RenewAll,
    Renewed,
    RenewedAll,
    Step,
    TakeUpAll,
)
from fencegate.core.errors import FencegateError, LockExpired
from fencegate.core.machine import refusals, rules
from fencegate.core.machine.judging import is_there
from fencegate.core.machine.lock import LockTurn
from fencegate.core.machine.turn import Turn
from fencegate.core.model import Claimant, lock_entry


def _locks(turn: Turn, lock_keys: list[str] | tuple[str, ...]) -> list[LockTurn]:
    turn.require([lock_entry(lock_key) for lock_key in lock_keys])
    return [LockTurn(turn, lock_key) for lock_key in lock_keys]


def _step(turn: Turn, locks: list[LockTurn], outcome: Outcome, tried: str = "") -> Step:
    for lock in locks:
        lock.hand_over(tried)
    return turn.step(outcome, *locks)


def _named(error: FencegateError, lock_key: str) -> Refused:
    """A refusal of one lock refuses them all; it says which one it was."""
    error.members.setdefault("lockKey", lock_key)
    return Refused(error)


def acquire_all(turn: Turn, command: AcquireAll) -> Step:
    locks = _locks(turn, [part.lock_key for part in command.parts])
    pairs = list(zip(locks, command.parts, strict=True))
    repeat = _repeated(pairs)
    if repeat is not None:
        return _step(turn, locks, repeat)
    claimants: list[Claimant] = []
    for lock, part in pairs:
        who = rules.under_session(lock, part.who)
        refusal = who if isinstance(who, Refused) else rules.cannot_hold(lock, who)
        if refusal is not None:
            return _step(turn, locks, _named(refusal.error, lock.lock_key))
        assert isinstance(who, Claimant)
        claimants.append(who)
    asked = zip(locks, claimants, strict=True)
    blocked = [(lock, who) for lock, who in asked if not (lock.is_next(who) and lock.fits(who))]
    if not blocked:
        return _step(turn, locks, _grant_all(locks, claimants))
    if not command.parts[0].wait:
        return _step(turn, locks, Refused(refusals.held(*blocked[0])))
    places = [lock.find_waiter(command.request) for lock in locks]
    if None in places:  # of places that were not made in one commit, two waiters may each have one before the other
        for lock, place in zip(locks, places, strict=True):
            if place is not None:
                lock.remove(place)
    outcomes = [rules.enqueue(lock, part, who) for (lock, part), who in zip(pairs, claimants, strict=True)]
    for lock, outcome in zip(locks, outcomes, strict=True):
        if isinstance(outcome, Refused):
            return turn.nothing_but(_named(outcome.error, lock.lock_key))
    ahead = max(outcome.ahead for outcome in outcomes if isinstance(outcome, Queued))
    return _step(turn, locks, Queued(ahead))


def _repeated(pairs: list[tuple[LockTurn, Acquire]]) -> Outcome | None:
    repeats = [rules.repeated(lock, part) for lock, part in pairs]
    for repeat in repeats:
        if isinstance(repeat, Refused):
            return repeat
    holds = [repeat.hold for repeat in repeats if isinstance(repeat, Granted)]
    if not holds:
        return None
    if len(holds) < len(pairs):
        return Refused(LockExpired("some of these locks are gone already; release the rest, and acquire anew"))
    return GrantedAll(tuple(holds))


def _grant_all(locks: list[LockTurn], claimants: list[Claimant]) -> GrantedAll:
    """One token for all, above everything that any of them has seen."""
    token = max(lock.lowest_token() for lock in locks)
    return GrantedAll(tuple(lock.grant(who, token=token).hold for lock, who in zip(locks, claimants, strict=True)))


def hand_over_all(turn: Turn, command: HandOverAll) -> Step:
    locks = _locks(turn, command.lock_keys)
    waiters = [lock.find_waiter(command.request) for lock in locks]
    there = [waiter for waiter in waiters if waiter is not None]
    offered = [lock for lock in locks if _is_offered(lock, command.request)]
    if len(there) < len(locks):  # a place was lost with its record: the others would keep everybody out for ever
        for lock, waiter in zip(locks, waiters, strict=True):
            if waiter is not None:
                lock.remove(waiter)
    elif any(waiter.suspect_us for waiter in there):  # who is thought dead at one of them is so at all
        turn.shaken = True
        for lock, waiter in zip(locks, there, strict=True):
            lock.put(waiter, replace(waiter, suspect_us=waiter.suspect_us or turn.now.earliest))
    elif not offered and all(
        is_there(waiter) and lock.is_next(waiter.who) and lock.fits(waiter.who) and not lock.is_full
        for lock, waiter in zip(locks, there, strict=True)
    ):
        for lock, waiter in zip(locks, there, strict=True):
            lock.offer(waiter)
    return _step(turn, locks, Nothing(), tried=command.request)


def _is_offered(lock: LockTurn, request: str) -> bool:
    return lock.record.offer is not None and lock.record.offer.waiter.who.request == request


def take_up_all(turn: Turn, command: TakeUpAll) -> Step:
    locks = _locks(turn, command.lock_keys)
    holds = [hold for lock in locks if (hold := rules.hold_for(lock.record, command.request)) is not None]
    if len(holds) == len(locks):
        return _step(turn, locks, GrantedAll(tuple(map(LockTurn.tell_again, locks, holds))))
    if not all(_is_offered(lock, command.request) for lock in locks):
        return _step(turn, locks, Nothing(), tried=command.request)
    claimants: list[Claimant] = []
    for lock in locks:
        offer = lock.record.offer
        assert offer is not None
        who = rules.under_session(lock, offer.waiter.who)
        if isinstance(who, Refused):
            for other in locks:
                assert other.record.offer is not None
                other.remove(other.record.offer.waiter)
            return _step(turn, locks, who)
        claimants.append(who)
    if not all(lock.fits(who) for lock, who in zip(locks, claimants, strict=True)):
        for lock in locks:
            lock.give_back()
        return _step(turn, locks, Nothing(), tried=command.request)
    return _step(turn, locks, _grant_all(locks, claimants))


def leave_all(turn: Turn, command: LeaveAll) -> Step:
    locks = _locks(turn, [part.lock_key for part in command.parts])
    outcomes = [rules.leave(lock, part) for lock, part in zip(locks, command.parts, strict=True)]
    holds = [outcome.hold for outcome in outcomes if isinstance(outcome, Granted)]
    return _step(turn, locks, GrantedAll(tuple(holds)) if len(holds) == len(locks) else Nothing())


def renew_all(turn: Turn, command: RenewAll) -> Step:
    locks = _locks(turn, [part.lock_key for part in command.parts])
    renewed: list[Renewed] = []
    for lock, part in zip(locks, command.parts, strict=True):
        outcome = rules.renew(lock, part)
        if isinstance(outcome, Refused):
            return turn.nothing_but(_named(outcome.error, lock.lock_key))
        renewed.append(outcome)
    return _step(turn, locks, RenewedAll(tuple(renewed)))


def release_all(turn: Turn, command: ReleaseAll) -> Step:
    """Give back what there is; if one of them was gone already, the others are free all the same."""
    locks = _locks(turn, [part.lock_key for part in command.parts])
    left: list[int] = []
    refusal: Refused | None = None
    for lock, part in zip(locks, command.parts, strict=True):
        outcome = rules.release(lock, part)
        if isinstance(outcome, Released):
            left.append(outcome.left)
        else:
            refusal = refusal or _named(outcome.error, lock.lock_key)
    return _step(turn, locks, refusal or ReleasedAll(tuple(left)))
