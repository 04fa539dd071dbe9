"""Payments on trial: every worker gets every payment, and one sleeps between its look and its charge."""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from fencegate_demo.trials.bench import Bench
from fencegate_demo.trials.events import Touched
from fencegate_demo.trials.use import Findings, Place, Use
from fencegate_demo.uses import payment
from fencegate_demo.uses.payment import Account, Base, Entry, Payment

BALANCE = 1000
AMOUNT = 100
PAYMENTS = 3


def _payments(place: Place) -> list[Payment]:
    return [Payment(f"{place.name}-{number + 1}", "acme", AMOUNT) for number in range(PAYMENTS)]


def prepare(place: Place) -> None:
    engine = create_engine(place.database)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Account(id="acme", balance=BALANCE))
    engine.dispose()


def work(bench: Bench) -> None:
    engine = bench.engine(payment)
    with bench.locks() as locks:
        for each in _payments(bench.place):
            bench.attempt(partial(payment.charge_once, locks, engine, each, bench.reach, ttl=bench.ttl))


async def examine(place: Place, _touched: Sequence[Touched]) -> Findings:
    engine = create_engine(place.database)
    with Session(engine) as session:
        balance = session.get_one(Account, "acme").balance
        times = dict(session.execute(select(Entry.payment_id, func.count()).group_by(Entry.payment_id)).all())
    engine.dispose()
    charged = [times.get(each.id, 0) for each in _payments(place)]
    wrong = [f"payment {number} charged {count} times" for number, count in enumerate(charged, 1) if count != 1]
    if balance != BALANCE - PAYMENTS * AMOUNT:
        wrong.append(f"the balance is {balance} instead of {BALANCE - PAYMENTS * AMOUNT}")
    return Findings({"payments": PAYMENTS, "charges": sum(charged), "balance": balance}, wrong)


USE = Use("payment", "payment deduplication: delivered many times, charged once", "database", prepare, work, examine)
