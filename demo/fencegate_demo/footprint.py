"""Leaving nothing behind in a user's own store or resource: what was not there before is gone afterwards."""

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from fencegate.gateway.resources import FolderSettings, ResourceSettings, SqlSettings
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
                if stack.enter_context(file_of(settings.url)):
                    from fencegate_demo.database_footprint import traceless_database

                    stack.enter_context(traceless_database(settings, several, keys))
            else:
                await stack.enter_async_context(traceless_resource(settings, keys))
        yield


# --- files -----------------------------------------------------------------------------------------------------------


@contextmanager
def _in_folder(path: Path) -> Iterator[None]:
    """The folder is one of ours inside the user's."""
    made = _missing(path.parent)
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _remove(made)


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
