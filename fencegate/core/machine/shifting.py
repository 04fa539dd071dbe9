"""A record with all its times moved: how one that was written by another clock is read by ours."""

from dataclasses import replace

from fencegate.core.model import Hold, LockRecord, Record, RevokedLock, Session, Waiter


def shifted(record: Record, by_us: int) -> Record:
    """The same record, every time in it so much later."""
    if not by_us:
        return record
    if isinstance(record, LockRecord):
        return _lock(record, by_us)
    if isinstance(record, Session):
        return replace(
            record,
            opened_us=record.opened_us + by_us,
            expires_us=record.expires_us + by_us,
            ended_us=_moved(record.ended_us, by_us),
            revoked=tuple([_revoked_lock(told, by_us) for told in record.revoked]),
        )
    return record


def not_later_than(before: Record, record: Record) -> Record:
    """The record, in which whatever is as it was `before` ends no later than it did there. Whatever starts or lengthens
    a hold, or a session, changes its token or its renewals."""
    if isinstance(before, LockRecord) and isinstance(record, LockRecord):
        known = {_same(hold): hold for hold in before.holds}
        holds = tuple([_earlier(known.get(_same(hold)), hold) for hold in record.holds])
        return replace(record, holds=holds)
    if not isinstance(before, Session) or not isinstance(record, Session):
        return record
    if before.renewals == record.renewals and before.ended is None and record.expires_us > before.expires_us:
        return replace(record, opened_us=before.opened_us, expires_us=before.expires_us)
    return record


def _same(hold: Hold) -> tuple[str, int, int, bool]:
    return hold.who.lock_token, hold.token, hold.renewals, hold.pending


def _earlier(before: Hold | None, hold: Hold) -> Hold:
    if before is None or before.expires_us >= hold.expires_us:
        return hold
    return replace(hold, granted_us=before.granted_us, expires_us=before.expires_us)


def _lock(record: LockRecord, by_us: int) -> LockRecord:
    offer, revoked = record.offer, record.revoked
    return replace(
        record,
        holds=tuple([_hold(hold, by_us) for hold in record.holds]),
        offer=offer and replace(offer, waiter=_waiter(offer.waiter, by_us), until_us=offer.until_us + by_us),
        queue=tuple([_waiter(waiter, by_us) for waiter in record.queue]),
        touched_us=_moved(record.touched_us, by_us),
        closed_until_us=_moved(record.closed_until_us, by_us),
        revoked=revoked and replace(revoked, at_us=revoked.at_us + by_us),
    )


def _hold(hold: Hold, by_us: int) -> Hold:
    return replace(hold, granted_us=hold.granted_us + by_us, expires_us=hold.expires_us + by_us)


def _waiter(waiter: Waiter, by_us: int) -> Waiter:
    if not waiter.keep_until_us and not waiter.suspect_us:
        return waiter
    kept_us, suspect_us = _moved(waiter.keep_until_us, by_us), _moved(waiter.suspect_us, by_us)
    return replace(waiter, keep_until_us=kept_us, suspect_us=suspect_us)


def _revoked_lock(told: RevokedLock, by_us: int) -> RevokedLock:
    return replace(told, revoked=replace(told.revoked, at_us=told.revoked.at_us + by_us))


def _moved(at_us: int, by_us: int) -> int:
    """0 stands for 'never', and stays so."""
    return at_us + by_us if at_us else 0
