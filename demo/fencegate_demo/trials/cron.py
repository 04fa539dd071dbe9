"""A cron job on trial: every host fires, again and again, and one sleeps over the report."""

from collections.abc import Sequence

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from fencegate.clock import sleep_s
from fencegate_demo.trials.bench import Bench
from fencegate_demo.trials.events import Touched
from fencegate_demo.trials.use import Findings, Place, Use
from fencegate_demo.uses import cron
from fencegate_demo.uses.cron import Base, Report

FIRES_EVERY_S = 0.1


def prepare(place: Place) -> None:
    engine = create_engine(place.database)
    Base.metadata.create_all(engine)
    engine.dispose()


def work(bench: Bench) -> None:
    engine = bench.engine(cron)

    def build(_day: str) -> str:
        bench.reach()
        return f"made by {bench.name}"

    with bench.locks() as locks:
        job = cron.daily_report(locks, engine, build, ttl=bench.ttl)
        while bench.attempt(lambda: job(bench.place.name)) is None:
            sleep_s(FIRES_EVERY_S)


async def examine(place: Place, _touched: Sequence[Touched]) -> Findings:
    engine = create_engine(place.database)
    with Session(engine) as session:
        texts = list(session.scalars(select(Report.text).order_by(Report.id)))
    engine.dispose()
    wrong = [] if len(texts) == 1 else [f"{len(texts)} reports for one day: {', '.join(texts)}"]
    return Findings({"reports": len(texts)}, wrong)


USE = Use("cron", "cron deduplication: every host fires, one report is made", "database", prepare, work, examine)
