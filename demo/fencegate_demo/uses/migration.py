"""Database migration: every instance migrates at its start, and each step is taken once, and whole.

A step commits together with the note that it was taken, under the fence. An instance that was frozen after it had
read how far the schema is can't take a step that another took meanwhile.

    locks, engine = connect(), create_engine("sqlite:///shop.db")
    migrate(locks, engine, "shop", [prices_in_cents, add_currency], back_up)
"""

from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, insert, select, update

from fencegate.sql import fenced
from fencegate.sync import Locks

Step = Callable[[Connection], None]

metadata = MetaData()
schema = Table("schema_version", metadata, Column("steps_taken", Integer, nullable=False))


def migrate(
    locks: Locks,
    engine: Engine,
    database: str,
    steps: Sequence[Step],
    back_up: Callable[[int], None],
    *,
    ttl: float = 60.0,
) -> int:
    """Take the steps that are missing, in their order; how many that were. New steps go to the end of the list."""
    with locks.hold(f"migration:{database}", ttl=ttl, wait=600) as lease:
        with engine.connect() as connection, fenced(connection, lease):
            metadata.create_all(connection)
            done = connection.scalar(select(schema.c.steps_taken))
            if done is None:
                connection.execute(insert(schema).values(steps_taken=(done := 0)))
        missing = steps[done:]
        if missing:
            back_up(done)
        for number, step in enumerate(missing, done + 1):
            with engine.connect() as connection, fenced(connection, lease):
                step(connection)
                connection.execute(update(schema).values(steps_taken=number))
    return len(missing)
