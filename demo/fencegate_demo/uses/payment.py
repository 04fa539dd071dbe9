"""Payment deduplication: a payment that is delivered many times, to many workers, is charged once.

A look for an earlier charge and the charge itself are two steps, with a slow risk assessment between them. The lock
keeps other workers out meanwhile; the fence keeps out the one that lost the lock without noticing.

    locks, engine = connect(), create_engine("sqlite:///ledger.db")
    charge_once(locks, engine, Payment("pay_81", "acme", 1200), assess)
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencegate.sql import fenced
from fencegate.sync import Locks


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Entry(Base):
    """A line of the ledger. A payment may have several (a charge, a refund), so no unique key can do this job."""

    __tablename__ = "ledger"
    id: Mapped[int] = mapped_column(primary_key=True)
    payment_id: Mapped[str] = mapped_column(index=True)
    kind: Mapped[str]
    amount: Mapped[int]


@dataclass(frozen=True)
class Payment:
    id: str
    account: str
    amount: int


def charge_once(
    locks: Locks, engine: Engine, payment: Payment, assess: Callable[[Payment], None], *, ttl: float = 30.0
) -> bool:
    """Charge the payment; False when that was done before. `assess` raises for a payment that must not be."""
    charged = select(Entry.id).where(Entry.payment_id == payment.id, Entry.kind == "charge")
    with locks.hold(f"payment:{payment.id}", ttl=ttl, wait=60) as lease:
        with Session(engine) as session, fenced(session, lease):  # a fenced read: no older holder can charge after it
            if session.scalar(charged) is not None:
                return False
        assess(payment)
        with Session(engine) as session, fenced(session, lease):
            session.add(Entry(payment_id=payment.id, kind="charge", amount=payment.amount))
            debit = update(Account).where(Account.id == payment.account)
            session.execute(debit.values(balance=Account.balance - payment.amount))
    return True
