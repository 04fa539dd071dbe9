"""Being told of every statement before it is executed, by the cheapest event that SQLAlchemy has for it.

An engine with listeners of its own has each of its connections join seven of them, in every transaction: some 100
calls in Python, half of what a fence took. Where the dialect executes there is a hook that takes three. But a listener
there may say that it has done the work itself, and those after it are not asked. So ours has to be the first; where it
can't be, or is no longer (one that listens to all engines comes before it), it is `before_cursor_execute`.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Dialect, Engine, event

_OF_DIALECT = ("do_execute", "do_executemany", "do_execute_no_params")
_OF_ENGINE = "before_cursor_execute"
_LISTENS = "fencegate_listens"
"""Among the attributes of engines and dialects that are listened to. (SQLAlchemy's own `event.contains` goes by their
addresses, and says yes of a new engine that stands where one stood that is gone: its statements would have passed
unseen.)"""


class BeforeStatements:
    """Has `of_dialect` called before each statement, with the context of its execution as the last argument, or
    `of_engine` with the connection as the first."""

    def __init__(self, of_dialect: Callable[..., None], of_engine: Callable[..., None]) -> None:
        self._of_dialect = of_dialect
        self._of_engine = of_engine

    def is_first(self, dialect: Dialect) -> bool:
        """Ask whenever that matters: another may have come before us."""
        heard = dialect.__dict__.get(_LISTENS)
        if heard is None:
            return False
        one, many, plain = heard
        return (
            one.listeners[0] is many.listeners[0] is plain.listeners[0] is self._of_dialect  # else one was put before
            and not (one.parent_listeners or many.parent_listeners or plain.parent_listeners)  # of all engines
        )

    def listen(self, engine: Engine) -> None:
        if _LISTENS in vars(engine):
            return
        dispatch: Any = engine.dialect.dispatch
        if any(getattr(dispatch, name) for name in _OF_DIALECT):
            event.listen(engine, _OF_ENGINE, self._of_engine)
            vars(engine)[_LISTENS] = True
            return
        for name in _OF_DIALECT:
            event.listen(engine, name, self._of_dialect)
        vars(engine.dialect)[_LISTENS] = [getattr(dispatch, name) for name in _OF_DIALECT]
