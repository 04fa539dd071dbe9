"""From what a caller says to what is asked: the arguments are judged now, the request is made when it is time."""

from collections.abc import Callable, Iterable

from fencegate.client.acquisition import Acquisition
from fencegate.client.asks import LockChoice, OneLock, SeveralLocks, chosen
from fencegate.client.attachment import Attachment, import_grant
from fencegate.client.connection import Connection
from fencegate.client.duration import ttl_millis
from fencegate.client.grant import Grant
from fencegate.client.group import Grants
from fencegate.client.holding import Request
from fencegate.client.plain import PlainAcquisition
from fencegate.client.session import Opened, Opening
from fencegate.client.terms import GroupTerms, Terms, Wish, wish_for_one, wish_for_several
from fencegate.core.names import check_lock_key, check_text


def lock_request(connection: Connection, lock_key: str, terms: Terms) -> Callable[[], Request[Grant]]:
    ask = OneLock(check_lock_key(lock_key), wish_for_one(terms))
    if ask.wish.is_plain:
        return lambda: PlainAcquisition(ask, connection.owner_id, connection.clock, connection.timeout_s)

    def request() -> Request[Grant]:
        _check_session(ask.wish)
        return Acquisition(ask, connection.owner_id, connection.clock, connection.timeout_s)

    return request


def locks_request(
    connection: Connection, locks: Iterable[LockChoice], terms: GroupTerms
) -> Callable[[], Request[Grants]]:
    ask = SeveralLocks(chosen(tuple(locks)), wish_for_several(terms))

    def request() -> Request[Grants]:
        _check_session(ask.wish)
        return Acquisition(ask, connection.owner_id, connection.clock, connection.timeout_s)

    return request


def attachment_request(connection: Connection, exported: str) -> Callable[[], Request[Grant]]:
    grant = import_grant(exported)
    return lambda: Attachment(grant, connection.clock, connection.timeout_s)


def session_request(connection: Connection, ttl: float, owner: str | None) -> Callable[[], Request[Opened]]:
    ttl_ms = ttl_millis(ttl)
    if owner is not None:
        check_text("owner", owner)
    return lambda: Opening(owner or connection.owner_id, ttl_ms, connection.clock, connection.timeout_s)


def _check_session(wish: Wish) -> None:
    """A session that is over, or of the process that this one was forked from, holds nothing any more."""
    if wish.session is not None:
        wish.session.ensure_held()
