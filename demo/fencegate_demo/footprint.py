"""Leaving nothing behind in a user's own store or resource: what was not there before is gone afterwards."""

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, delete, func, inspect, select

from fencegate_adapters.sql.tables import documents, fences, resources
from fencegate_demo.plan import Plan, Trial
from fencegate_demo.store_footprint import traceless_store


@asynccontextmanager
async def traceless(plan: Plan, store: str) -> AsyncIterator[list[str]]:
    """Around the whole demo, processes and all. Gives what is to be said about it, when it is over."""
    async with AsyncExitStack() as stack:
        remarks: list[str] = []
        if stack.enter_context(_file_of(store)):
            await stack.enter_async_context(traceless_store(store, plan.prefix, remarks))
        by_url: dict[str, list[Trial]] = {}
        for trial in plan.trials:
            by_url.setdefault(trial.settings.url, []).append(trial)
        for url, trials in by_url.items():
            rows = trials[0].settings.kind == "rows"
            stack.enter_context(_in_database(url, trials) if rows else _in_folder(trials[0].settings.folder))
        yield remarks


# --- resources -------------------------------------------------------------------------------------------------------


@contextmanager
def _in_database(url: str, trials: Sequence[Trial]) -> Iterator[None]:
    with _file_of(url) as keeps:
        if not keeps:
            yield
            return
        engine = create_engine(url)
        tables = _tables(engine)
        try:
            yield
        finally:
            _forget_rows(engine, trials, tables)
            engine.dispose()


def _forget_rows(engine: Engine, trials: Sequence[Trial], tables: set[str]) -> None:
    """Remove our rows, and those of our tables that were not among `tables` and are empty again."""
    names = [trial.settings.name for trial in trials]
    locks = [trial.lock_key.encode() for trial in trials]
    with engine.begin() as connection:
        there = _tables(connection)
        for table, ours in (
            (documents, documents.c.resource.in_(names)),
            (fences, fences.c.lock_key.in_(locks)),
            (resources, resources.c.name.in_(names)),
        ):
            if table.name in there:
                connection.execute(delete(table).where(ours))
                if table.name not in tables and not connection.scalar(select(func.count()).select_from(table)):
                    table.drop(connection)


def _tables(bind: Engine | Connection) -> set[str]:
    return set(inspect(bind).get_table_names())


@contextmanager
def _in_folder(path: Path) -> Iterator[None]:
    """The folder is one of ours inside the user's."""
    made = _missing(path.parent)
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _remove(made)


# --- files -----------------------------------------------------------------------------------------------------------


@contextmanager
def _file_of(url: str) -> Iterator[bool]:
    """The SQLite file of this URL, removed in the end if there was none. Says whether there is something to keep."""
    path = Path(url.removeprefix("sqlite:///").partition("?")[0]).absolute()
    new = url.startswith("sqlite:") and not path.exists()
    made = _missing(path.parent)
    try:
        yield not new and not url.startswith("memory:")
    finally:
        if new:
            for suffix in ("", "-wal", "-shm", "-journal"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            _remove(made)


def _missing(folder: Path) -> list[Path]:
    """The folders that would have to be made for this one, the innermost first."""
    return [each for each in (folder, *folder.parents) if not each.exists()]


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # something of somebody else's is in it by now
            folder.rmdir()
