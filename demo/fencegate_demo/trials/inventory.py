"""Inventory on trial: more orders than goods, and a till that sleeps over an order."""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from fencegate_demo.trials.bench import Bench
from fencegate_demo.trials.events import Touched
from fencegate_demo.trials.use import Findings, Place, Use
from fencegate_demo.uses import inventory
from fencegate_demo.uses.inventory import Base, Order, Reservation, Stock

STOCK = 5
ORDERS = 3
"""What each till has to sell; those that stop have one order."""


def _sku(place: Place) -> str:
    return f"{place.name}-lamp"


def prepare(place: Place) -> None:
    engine = create_engine(place.database)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Stock(sku=_sku(place), left=STOCK))
    engine.dispose()


def work(bench: Bench) -> None:
    engine = bench.engine(inventory)

    def approve(_order: Order) -> bool:
        bench.reach()
        return True

    with bench.locks() as locks:
        for number in range(ORDERS if bench.role == "free" else 1):
            order = Order(f"{bench.name}{number + 1}", _sku(bench.place), 1)
            bench.attempt(partial(inventory.reserve, locks, engine, order, approve, ttl=bench.ttl))


async def examine(place: Place, _touched: Sequence[Touched]) -> Findings:
    engine = create_engine(place.database)
    with Session(engine) as session:
        left = session.get_one(Stock, _sku(place)).left
        reserved = session.scalar(select(func.sum(Reservation.quantity))) or 0
    engine.dispose()
    wrong = []
    if reserved > STOCK:
        wrong.append(f"{reserved} sold of {STOCK}")
    if left != STOCK - reserved:
        wrong.append(f"the stock says {left} left, with {reserved} of {STOCK} reserved")
    if reserved < STOCK:
        wrong.append(f"only {reserved} of {STOCK} sold, with more orders than goods")
    return Findings({"stock": STOCK, "reserved": reserved, "left": left}, wrong)


USE = Use("inventory", "inventory reservation: nothing is sold that isn't there", "database", prepare, work, examine)
