"""The boundary between a program and its resource: where what is on trial is seen, with the fence and without.

The programs know nothing of it: `fenced` is replaced in their module by one that tells what became of the block, and
their HTTP client has hooks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Literal, TypeVar

import httpx
from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session

from fencegate.clock import SYSTEM
from fencegate.core.errors import StaleToken
from fencegate.sql import Lease, fenced
from fencegate_demo.trials.events import Told, Touched

S = TypeVar("S", Session, Connection)
WRITES = ("INSERT", "UPDATE", "DELETE", "ALTER")


class Boundary:
    """Tells of each answer of the resource."""

    def __init__(self, actor: str, say: Callable[[Told], None]) -> None:
        self._actor = actor
        self._say = say
        self._wrote = False

    def watch_database(self, program: ModuleType, engine: Engine, *, checks: bool) -> None:
        """Have the program's `fenced` tell; without the check it is an ordinary transaction."""

        @contextmanager
        def told(session: S, lease: Lease) -> Iterator[S]:
            self._wrote = False
            try:
                with fenced(session, lease) if checks else _unfenced(session):
                    yield session
            except StaleToken:
                self._touched(lease.lock_key, lease.token, wrote=True, accepted=False)
                raise
            self._touched(lease.lock_key, lease.token, wrote=self._wrote, accepted=True)

        event.listen(engine, "before_cursor_execute", self._look_at)
        program.fenced = told  # type: ignore[attr-defined]  # every program that uses a database imports it

    def _look_at(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.lstrip().upper().startswith(WRITES) and "fencegate_" not in statement:
            self._wrote = True

    def answered(self, response: httpx.Response) -> None:
        """An answer of the gateway; one that says nothing about the token, such as an outage, is none."""
        request = response.request
        if response.status_code < 500:
            token = int(request.headers["Fencing-Token"])
            wrote, accepted = request.method != "GET", response.status_code != 412
            self._touched(request.headers["Fencing-Lock"], token, wrote=wrote, accepted=accepted)

    def _touched(self, lock_key: str, token: int, *, wrote: bool, accepted: bool) -> None:
        kind: Literal["read", "write"] = "write" if wrote else "read"
        at_us = SYSTEM.monotonic_us()
        self._say(Touched(at_us, self._actor, lock_key, int(token), kind, accepted))


@contextmanager
def _unfenced(session: Session | Connection) -> Iterator[None]:
    """The same transaction, from its first statement to its commit, without the fence."""
    connection = session.connection() if isinstance(session, Session) else session
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        session.rollback()
        raise
    session.commit()
