"""Leaving nothing behind in a user's own store or resource: what was not there before is gone afterwards."""

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, delete, func, inspect, make_url, select
from sqlalchemy.exc import SQLAlchemyError

from fencegate.core.errors import ResourceUnavailable
from fencegate.core.ports import Key
from fencegate.gateway.resources import FolderSettings, ResourceSettings, SqlSettings
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.tables import documents, fences, resources
from fencegate_demo.plan import KEY, Plan
from fencegate_demo.remote_footprint import Keys, traceless_resource
from fencegate_demo.store_footprint import traceless_store


@asynccontextmanager
async def traceless(plan: Plan) -> AsyncIterator[list[str]]:
    """Around the whole demo, processes and all. Gives what is to be said about it, when it is over. What the demo has
    started itself is thrown away as a whole."""
    async with AsyncExitStack() as stack:
        remarks: list[str] = []
        for store in {store.url: store for store in (*plan.stores, plan.store)}.values():
            if store.mine and stack.enter_context(file_of(store.url)):
                await stack.enter_async_context(traceless_store(store.url, plan.prefix, remarks))
        corners = [trial.settings for trial in plan.trials if trial.over.mine]
        await stack.enter_async_context(traceless_corners(corners, lambda: [KEY]))
        yield remarks


@asynccontextmanager
async def traceless_corners(corners: Sequence[ResourceSettings], keys: Keys) -> AsyncIterator[None]:
    """Around whatever writes to these resources, each of which is a corner of its own in one of the user's; `keys`
    are all that were written to, when it is over."""
    by_url: dict[str, list[ResourceSettings]] = {}
    for settings in corners:
        by_url.setdefault(settings.url, []).append(settings)
    async with AsyncExitStack() as stack:
        for several in by_url.values():
            settings = several[0]
            if isinstance(settings, FolderSettings):
                stack.enter_context(_in_folder(settings.folder))
            elif isinstance(settings, SqlSettings):
                stack.enter_context(_in_database(settings, several, keys))
            else:
                await stack.enter_async_context(traceless_resource(settings, keys))
        yield


# --- databases -------------------------------------------------------------------------------------------------------


@contextmanager
def _in_database(settings: SqlSettings, corners: Sequence[ResourceSettings], keys: Keys) -> Iterator[None]:
    with file_of(settings.url) as keeps:
        if not keeps:
            yield
            return
        with _told(), settings.needs(settings.extra):
            url = make_url(settings.url)
            engine = dialect_of(url.get_backend_name()).engine(url, 1)
            tables = _tables(engine)
        try:
            yield
        finally:
            with _told():
                _forget_rows(engine, corners, keys(), tables)
                engine.dispose()


@contextmanager
def _told() -> Iterator[None]:
    """A database that fails is told in words."""
    try:
        yield
    except SQLAlchemyError as error:
        raise ResourceUnavailable(f"the database failed: {' '.join(cause(error).split())}") from None


def _forget_rows(engine: Engine, corners: Sequence[ResourceSettings], keys: Sequence[Key], tables: set[str]) -> None:
    """Remove our rows, and those of our tables that were not among `tables` and are empty again."""
    names = [settings.name for settings in corners]
    locks = [settings.guard_rule.lock_key(key).encode() for settings in corners for key in keys]
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
def file_of(url: str) -> Iterator[bool]:
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
