"""Stores, chosen by URL. Each is imported only when it is used."""

import importlib
import os
import threading
from pathlib import Path

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.names import repeats_an_option
from fencegate.core.ports import Store

SUPPORTED = (
    "sqlite:///PATH",
    "redis://HOST:PORT/DB",
    "postgresql://USER@HOST/DATABASE",
    "mysql://USER@HOST/DATABASE",
    "etcd://A:PORT,B:PORT,C:PORT",
    "zookeeper://A:PORT,B:PORT,C:PORT",
    "redlock://A:PORT,B:PORT,C:PORT,D:PORT,E:PORT",
    "memory://",
)
_MODULES = {
    "redis": "redis",
    "rediss": "redis",
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "etcd": "etcd",
    "etcds": "etcd",
    "zookeeper": "zookeeper",
    "redlock": "redlock",
}
"""The module of `stores` that keeps locks behind a URL of this scheme; it has a `make_store(url, clock)`."""
_EXTRAS = {"redlock": "redis"}

_shared: dict[str, tuple[Store, int]] = {}
_mutex = threading.Lock()


async def open_store(url: str, clock: Clock = SYSTEM) -> Store:
    """The store behind `url`, reached for the first time. Let go of it with `close_store`.

    An embedded one is one store within a process; one on a server is a connection of whoever opens it.
    """
    scheme = url.partition("://")[0]
    if scheme in _MODULES:
        store = _make(scheme, url, clock)
        try:
            await store.open()
        except BaseException:
            await store.close()
            raise
        return store
    name = _canonical(url)
    with _mutex:
        store, users = _shared.get(name) or (_make_embedded(name, clock), 0)
        _shared[name] = (store, users + 1)
        return store


async def close_store(store: Store) -> None:
    """Close the store when its last user lets go of it."""
    with _mutex:
        for name, (shared, users) in list(_shared.items()):
            if shared is store:
                _shared[name] = (shared, users - 1)
                if users > 1:
                    return
                del _shared[name]
    await store.close()


def check_supported(url: str) -> None:
    """UnsafeConfiguration when no store is behind URLs of this kind; nothing is opened, nor imported."""
    if url.partition("://")[0] not in _MODULES:
        _canonical(url)


def _canonical(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        return url
    if scheme == "sqlite" and ("?" in rest or rest == "/:memory:"):  # else it would be a file of that very name
        raise UnsafeConfiguration(
            "the URL of the store names a file, and has no options: write sqlite:///PATH, or memory:// for none"
        )
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        path = Path(rest[1:])
        return f"sqlite:///{path if path.is_absolute() else Path.cwd() / path}"
    if scheme == "sqlite":
        raise UnsafeConfiguration(
            "the URL of the store names no file: write sqlite:///PATH, or sqlite:////ABSOLUTE/PATH"
        )
    # Not the whole of it: there may be a password inside.
    raise UnsafeConfiguration(f"a store {scheme[:32]!r} is not supported; use one of {', '.join(SUPPORTED)}")


def _make(scheme: str, url: str, clock: Clock) -> Store:
    module = _MODULES[scheme]
    try:
        found = importlib.import_module(f"{__name__}.{module}.store")
    except ImportError as error:  # not there at all, or without a part of its own (psycopg without libpq)
        if (error.name or "").startswith("fencegate"):
            raise
        raise UnsafeConfiguration(
            f"a store {scheme!r} needs {error.name or error}: pip install 'fencegate[{_EXTRAS.get(module, module)}]'"
        ) from None
    if repeats_an_option(url):  # not which one: it may be the rest of a password
        raise UnsafeConfiguration("the URL of the store gives an option twice; give each of them once")
    store: Store = found.make_store(url, clock)
    return store


def _make_embedded(url: str, clock: Clock) -> Store:
    if url.startswith("memory://"):
        from fencegate_lockservice.stores.memory import MemoryStore

        return MemoryStore(clock)
    from fencegate_lockservice.stores.sqlite import SqliteStore

    return SqliteStore(Path(url.removeprefix("sqlite:///")), clock)


_left_behind: list[object] = []


def _after_fork_in_child() -> None:
    """A store's threads and file locks are the parent's: the child opens its own, or is refused at once."""
    global _shared, _mutex
    _left_behind.append(_shared)  # kept, not closed: closing would act on the parent's files
    _shared, _mutex = {}, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
