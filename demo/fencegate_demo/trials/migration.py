"""A migration on trial: one instance sleeps after it saw how far the schema is, another is killed inside a step."""

from collections.abc import Sequence

from sqlalchemy import Connection, create_engine, select, text

from fencegate_demo.trials.bench import Bench
from fencegate_demo.trials.events import Touched
from fencegate_demo.trials.use import Findings, Place, Use
from fencegate_demo.uses import migration
from fencegate_demo.uses.migration import Step, schema

EUROS = (3, 5)
STEPS = 3


def prepare(place: Place) -> None:
    engine = create_engine(place.database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE products (id INTEGER PRIMARY KEY, price INTEGER NOT NULL)"))
        for euros in EUROS:
            connection.execute(text("INSERT INTO products (price) VALUES (:price)"), {"price": euros})
    engine.dispose()


def _steps(bench: Bench) -> list[Step]:
    """Steps that must not be taken twice, nor by half."""

    def prices_in_cents(connection: Connection) -> None:
        connection.execute(text("UPDATE products SET price = price * 100"))

    def add_tax(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE products ADD COLUMN tax INTEGER"))
        if bench.role == "killed":
            bench.reach()
        connection.execute(text("UPDATE products SET tax = price / 5"))

    def round_tax(connection: Connection) -> None:
        connection.execute(text("UPDATE products SET tax = tax + 1"))

    return [prices_in_cents, add_tax, round_tax]


def work(bench: Bench) -> None:
    engine = bench.engine(migration)
    steps = _steps(bench)

    def back_up(_done: int) -> None:
        if bench.role == "stopped":
            bench.reach()

    with bench.locks() as locks:
        bench.attempt(lambda: migration.migrate(locks, engine, bench.place.name, steps, back_up, ttl=bench.ttl))


async def examine(place: Place, _touched: Sequence[Touched]) -> Findings:
    engine = create_engine(place.database)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(text("SELECT price, tax FROM products ORDER BY id"))]
        taken = connection.scalars(select(schema.c.steps_taken)).all()
    engine.dispose()
    expected = [(euros * 100, euros * 20 + 1) for euros in EUROS]
    wrong = [
        f"product {number} has (price, tax) {row} instead of {right}"
        for number, (row, right) in enumerate(zip(rows, expected, strict=True), 1)
        if row != right
    ]
    if taken != [STEPS]:
        wrong.append(f"the schema says that {' and '.join(map(str, taken))} of {STEPS} steps were taken")
    return Findings({"steps": sum(taken), "firstPrice": rows[0][0]}, wrong)


USE = Use("migration", "database migration: each step once, and whole", "database", prepare, work, examine)
