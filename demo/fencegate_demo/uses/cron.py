"""Cron deduplication: every host has the same crontab, and the report is made once.

`once` lets one host run and all others skip. It can't tell a host that is frozen from one that is dead, so the report
is written under the fence: a host that wakes up after another has taken over is refused.

    locks, engine = connect(), create_engine("sqlite:///reports.db")
    daily_report(locks, engine, build)("2025-11-16")
"""

from collections.abc import Callable

from sqlalchemy import Engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencegate.sql import Lease, fenced
from fencegate.sync import Locks


class Base(DeclarativeBase):
    pass


class Report(Base):
    """What goes out to the customers: two rows for a day are two mails."""

    __tablename__ = "reports"
    id: Mapped[int] = mapped_column(primary_key=True)
    day: Mapped[str]
    text: Mapped[str]


def daily_report(
    locks: Locks, engine: Engine, build: Callable[[str], str], *, ttl: float = 60.0
) -> Callable[[str], bool | None]:
    """The job: True when this host made the report, False when it was there, None when another host is at it."""

    @locks.once("cron:daily-report:{day}", ttl=ttl)
    def job(day: str, lease: Lease | None = None) -> bool:
        assert lease is not None, "`once` gives it"
        with Session(engine) as session, fenced(session, lease):
            if session.scalar(select(Report.id).where(Report.day == day)) is not None:
                return False
        text = build(day)
        with Session(engine) as session, fenced(session, lease):
            session.add(Report(day=day, text=text))
        return True

    return job
