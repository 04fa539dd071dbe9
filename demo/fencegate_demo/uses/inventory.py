"""Inventory reservation: many tills sell from one stock, and nothing is sold that isn't there.

The decision takes longer than a database transaction should (a price, a fraud check), so a lock is held over it. Both
ends are under the fence: the read, so that from then on no older holder can write, and the write itself.

    locks, engine = connect(), create_engine("sqlite:///shop.db")
    reserve(locks, engine, Order("4711", "lamp", 2), approve)
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencegate.sql import fenced
from fencegate.sync import Locks


class Base(DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "stock"
    sku: Mapped[str] = mapped_column(primary_key=True)
    left: Mapped[int]


class Reservation(Base):
    __tablename__ = "reservations"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    sku: Mapped[str]
    quantity: Mapped[int]


@dataclass(frozen=True)
class Order:
    id: str
    sku: str
    quantity: int


def reserve(locks: Locks, engine: Engine, order: Order, approve: Callable[[Order], bool], *, ttl: float = 30.0) -> bool:
    """Whether the order gets its goods. To call it again for the same order is safe, after StaleToken too."""
    with locks.hold(f"inventory:{order.sku}", ttl=ttl, wait=60) as lease:
        with Session(engine) as session, fenced(session, lease):
            if session.get(Reservation, order.id) is not None:
                return True
            left = session.get_one(Stock, order.sku).left
        if left < order.quantity or not approve(order):
            return False
        with Session(engine) as session, fenced(session, lease):  # StaleToken, and nothing sold, if we slept too long
            session.add(Reservation(order_id=order.id, sku=order.sku, quantity=order.quantity))
            session.execute(update(Stock).where(Stock.sku == order.sku).values(left=left - order.quantity))
    return True
