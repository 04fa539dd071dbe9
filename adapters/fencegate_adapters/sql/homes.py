"""What is known of an engine, and is kept among its attributes: is the fence table there, which marks were met."""

import contextlib
import logging

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.passing.seen import Seen
from fencegate_adapters.sql.tables import FENCE_TABLES, create
from fencegate_adapters.tables import missing

log = logging.getLogger("fencegate.sql")

_HOME = "fencegate_home"


class Home:
    """What is known of one engine."""

    def __init__(self) -> None:
        self.prepared = False
        self.tells = False
        """Of statements: see `hearing`."""
        self.seen = Seen()


def home_of(engine: Engine) -> Home:
    known = engine.__dict__
    home: Home = known.get(_HOME) or known.setdefault(_HOME, Home())
    return home


def prepare(bind: Engine | Connection) -> None:
    """Create the fence table where it is missing, in a transaction of its own: never in the caller's."""
    engine = bind.engine
    home = home_of(engine)
    if home.prepared:
        return
    dialect = dialect_of(engine.dialect.name)
    try:
        with contextlib.ExitStack() as stack:
            connection = bind if isinstance(bind, Connection) else stack.enter_context(bind.connect())
            with connection.begin():
                absent = missing(connection, FENCE_TABLES)
            with connection.begin():
                create(connection, absent)
            if engine.dialect.name != "sqlite":
                with connection.begin(), contextlib.suppress(DBAPIError):
                    dialect.check(connection)
    except UnsafeConfiguration as unsafe:  # the data is the caller's, and so is the choice; both are lost together
        log.warning("%s", unsafe.detail)
    except SQLAlchemyError as error:
        raise ResourceUnavailable(f"the fence table can't be created: {cause(error)}") from error
    home.prepared = True
