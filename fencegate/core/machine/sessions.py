"""The commands about a session: one keep-alive for many locks.

A session ends by a write on its own record, which is never taken back; only then are its locks free. The locks look at
it themselves: see `lock.over`.
"""

from dataclasses import replace

from fencegate.core.commands import (
    EndSession,
    ExpireSession,
    ForgetSession,
    Nothing,
    OpenSession,
    Refused,
    RenewSession,
    SessionIs,
    Step,
)
from fencegate.core.errors import NotOwner
from fencegate.core.machine import refusals
from fencegate.core.machine.turn import Turn
from fencegate.core.model import Ending, Session, session_entry

TOLD_FOR = 2
"""For how many TTLs after a lock was taken the session is told so: one renewal at least comes within each."""


def open_session(turn: Turn, command: OpenSession) -> Step:
    found = turn.session(command.session_id)
    if found is not None:  # by a commit whose answer was lost
        return turn.step(SessionIs(found) if found.ended is None else Refused(refusals.session_over(found)))
    now_us = turn.now.latest
    session = Session(command.owner_id, command.ttl_us, now_us, now_us + command.ttl_us)
    turn.writes[session_entry(command.session_id)] = session
    turn.must_land_before(session.expires_us)
    return turn.step(SessionIs(session))


def renew_session(turn: Turn, command: RenewSession) -> Step:
    found = turn.session(command.session_id)
    if found is None or found.ended is not None:
        return turn.step(Refused(refusals.session_over(found)))
    if command.owner_id is not None and command.owner_id != found.owner_id:
        return turn.step(Refused(NotOwner("the ownerId is not the one that opened this session")))
    turn.must_land_before(found.expires_us)
    ttl_us = command.ttl_us or found.ttl_us
    renewed = replace(
        found,
        ttl_us=ttl_us,
        expires_us=max(found.expires_us, turn.now.latest + ttl_us),
        renewals=found.renewals + 1,
        revoked=tuple(lock for lock in found.revoked if lock.revoked.at_us + TOLD_FOR * ttl_us > turn.now.earliest),
    )
    turn.writes[session_entry(command.session_id)] = renewed
    return turn.step(SessionIs(renewed))


def end_session(turn: Turn, command: EndSession) -> Step:
    found = turn.session(command.session_id)
    if found is None:
        return turn.step(Refused(refusals.session_over(None)))
    if found.ended is None:
        found = replace(found, ended=Ending.RELEASED, ended_us=turn.now.latest, revoked=())
        turn.writes[session_entry(command.session_id)] = found
    elif found.ended is not Ending.RELEASED:
        return turn.step(Refused(refusals.session_over(found)))
    return turn.step(SessionIs(found))


def expire_session(turn: Turn, command: ExpireSession) -> Step:
    found = turn.session(command.session_id)
    return turn.step(SessionIs(found) if found is not None else Nothing())


def forget_session(turn: Turn, command: ForgetSession) -> Step:
    found = turn.session(command.session_id)
    if found is not None and found.ended and found.ended_us + turn.limits.retention_us <= turn.now.earliest:
        turn.writes[session_entry(command.session_id)] = None
    return turn.step(Nothing())
