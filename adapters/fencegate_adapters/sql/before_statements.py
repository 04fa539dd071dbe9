"""Being told of every statement before it is executed, by the cheapest event that SQLAlchemy has for it.

An engine with listeners of its own has each of its connections join seven of them, in every transaction: some 100
calls in Python, half of what a fence took. Where the dialect executes there is a hook that takes three. But a listener
there may say that it has done the work itself, and those after it are not asked. So ours has to be the first; where it
can't be, or is no longer (one that listens to all engines comes before it), it is `before_cursor_execute`.
"""

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event

_OF_DIALECT = ("do_execute", "do_executemany", "do_execute_no_params")
_OF_ENGINE = "before_cursor_execute"

Listener = Callable[[Connection], None]

_heard: dict[Listener, "WeakKeyDictionary[object, Callable[..., None]]"] = {}
"""The engines and dialects that each listens to. (SQLAlchemy's own `event.contains` goes by their addresses, and says
yes of a new engine that stands where one stood that is gone: its statements would have passed unseen.)"""


def listen(engine: Engine, listener: Listener) -> None:
    """Have `listener` called with the connection before each of its statements. Say it again whenever that matters."""
    heard = _heard.get(listener)
    if heard is None:
        heard = _heard[listener] = WeakKeyDictionary()
    dispatch: Any = engine.dialect.dispatch
    first = _first(dispatch.do_execute), _first(dispatch.do_executemany), _first(dispatch.do_execute_no_params)
    ours = heard.get(engine.dialect)
    if (ours is not None and first == (ours, ours, ours)) or engine in heard:
        return

    def of_dialect(*given: Any) -> None:
        listener(given[-1].root_connection)  # of the execution's context

    def of_engine(connection: Connection, *_: Any) -> None:
        listener(connection)

    if any(first):
        event.listen(engine, _OF_ENGINE, of_engine)
        heard[engine] = of_engine
        return
    for name in _OF_DIALECT:
        event.listen(engine, name, of_dialect)
    heard[engine.dialect] = of_dialect


def _first(listeners: Iterable[Any]) -> Any:
    for listener in listeners:
        return listener
    return None
