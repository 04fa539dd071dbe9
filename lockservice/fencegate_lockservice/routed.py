"""The lock calls over several stores: each goes to the store of its lock key.

Clocks, revisions and versions of two stores don't compare, so nothing is ever decided over two of them: a call that
would have to be is refused. Sessions live in the store of '*'.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from fencegate.core.errors import FencegateError, InvalidInput, NotSupported
from fencegate.core.model import ancestors
from fencegate.web.json import convert_value
from fencegate_lockservice.answers import Answer
from fencegate_lockservice.api import MAX_PAGE, Given
from fencegate_lockservice.bodies import (
    AcquireBody,
    ForceReleaseBody,
    MultiAcquireBody,
    MultiReleaseBody,
    MultiRenewBody,
    OpenSessionBody,
    ReleaseBody,
    RenewBody,
    RenewSessionBody,
)
from fencegate_lockservice.history import DEFAULT_LIMIT
from fencegate_lockservice.over_store import Heard, StoreApi, heard
from fencegate_lockservice.routes import EVERYTHING, Routes, shown
from fencegate_lockservice.straight import Straight
from fencegate_lockservice.watch import Batch, Wanted


class RoutedApi:
    """See the head of this file. It owns what it is given."""

    def __init__(self, routes: Routes, apis: Mapping[str, StoreApi]) -> None:
        self._routes = routes
        self._apis = apis
        self._by_prefix = [(prefix, apis[url]) for prefix, url in routes.urls.items()]
        self._names = {
            apis[url]: f"{apis[url].store.name} ({', '.join(map(shown, routes.prefixes_of(url)))})"
            for url in routes.stores
        }

    # --- one lock ---

    def straight(self, lock_key: str) -> Straight:
        return self._of(lock_key).straight(lock_key)

    async def acquire(self, lock_key: str, body: Given | AcquireBody) -> Answer:
        asked = body if isinstance(body, AcquireBody) else convert_value(body, AcquireBody)
        api = self._of(lock_key)
        if asked.hierarchical:
            self._check_family(lock_key, api)
        if asked.sessionId:
            self._check_session([lock_key], api)
        return await api.acquire(lock_key, asked)

    async def renew(self, lock_key: str, body: Given | RenewBody) -> Answer:
        return await self._of(lock_key).renew(lock_key, body)

    async def release(self, lock_key: str, body: Given | ReleaseBody) -> Answer:
        return await self._of(lock_key).release(lock_key, body)

    async def force_release(self, lock_key: str, body: Given | ForceReleaseBody) -> Answer:
        return await self._of(lock_key).force_release(lock_key, body)

    async def status(self, lock_key: str) -> Answer:
        return await self._of(lock_key).status(lock_key)

    async def history(self, lock_key: str, *, limit: int = DEFAULT_LIMIT, cursor: str = "") -> Answer:
        return await self._of(lock_key).history(lock_key, limit=limit, cursor=cursor)

    # --- several at once ---

    async def multi_acquire(self, body: Given | MultiAcquireBody) -> Answer:
        asked = body if isinstance(body, MultiAcquireBody) else convert_value(body, MultiAcquireBody)
        keys = [lock.lockKey for lock in asked.locks]
        api = self._of_all(keys)
        if asked.sessionId:
            self._check_session(keys, api)
        return await api.multi_acquire(asked)

    async def multi_renew(self, body: Given | MultiRenewBody) -> Answer:
        asked = body if isinstance(body, MultiRenewBody) else convert_value(body, MultiRenewBody)
        return await self._of_all(lock.lockKey for lock in asked.locks).multi_renew(asked)

    async def multi_release(self, body: Given | MultiReleaseBody) -> Answer:
        asked = body if isinstance(body, MultiReleaseBody) else convert_value(body, MultiReleaseBody)
        return await self._of_all(lock.lockKey for lock in asked.locks).multi_release(asked)

    # --- sessions ---

    async def open_session(self, body: Given | OpenSessionBody) -> Answer:
        return await self._sessions().open_session(body)

    async def renew_session(self, session_id: str, body: Given | RenewSessionBody) -> Answer:
        return await self._sessions().renew_session(session_id, body)

    async def end_session(self, session_id: str) -> Answer:
        return await self._sessions().end_session(session_id)

    async def session(self, session_id: str) -> Answer:
        return await self._sessions().session(session_id)

    # --- looking ---

    async def list_locks(
        self, *, prefix: str = "", namespace: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Answer:
        """Locks of all stores, by key. Each store is asked for a whole page, since all of it may be wanted."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput("limit", f"must be 1 to {MAX_PAGE}")
        apis = [self._apis[url] for url in self._routes.within(prefix)]
        asked = [api.list_locks(prefix=prefix, namespace=namespace, limit=limit, cursor=cursor) for api in apis]
        pages = await asyncio.gather(*asked)
        found = [
            lock
            for api, page in zip(apis, pages, strict=True)
            for lock in page["locks"]
            if self._find(lock["lockKey"]) is api  # what was left behind when routes changed is not held
        ]
        found.sort(key=_key)
        ends = [page["nextCursor"] for page in pages if page["nextCursor"] is not None]
        if ends:  # beyond the first of them something may be missing still
            found = [lock for lock in found if _key(lock) <= min(ends)]
        if len(found) > limit:
            return {"locks": found[:limit], "nextCursor": _key(found[limit - 1])}
        return {"locks": found, "nextCursor": min(ends) if ends else None}

    def follow(self, wanted: Wanted) -> AsyncGenerator[Batch, None]:
        return self._followed(wanted).follow(wanted)

    def watch(self, query: Mapping[str, str]) -> AsyncGenerator[Heard, None]:
        return heard(self.follow(Wanted.of(query)))

    def _followed(self, wanted: Wanted) -> StoreApi:
        if wanted.key is not None:
            return self._of(wanted.key, "key")
        urls = self._routes.within(wanted.prefix)
        if not urls:
            raise self._no_store(wanted.prefix, "prefix")
        if len(urls) > 1:
            names = [self._names[self._apis[url]] for url in urls]
            what = f"the locks whose keys begin with {wanted.prefix!r}" if wanted.prefix else "the locks"
            raise NotSupported(
                f"{what} are kept in several stores, {', '.join(names)}, and a watch follows one: name a key, or a "
                "prefix that lies within one of them",
                feature="watch",
                store=", ".join(names),
            )
        return self._apis[urls[0]]

    # --- life ---

    def write_history(self) -> None:
        for api in self._apis.values():
            api.write_history()

    async def stop_waiting(self) -> None:
        await asyncio.gather(*(api.stop_waiting() for api in self._apis.values()))

    async def unavailable(self) -> Mapping[str, str]:
        """Why stores can't serve now, by name."""
        found = await asyncio.gather(*(api.unavailable() for api in self._apis.values()))
        pairs = zip(self._apis.values(), found, strict=True)
        return {self._names[api]: detail for api, down in pairs for detail in down.values()}

    async def close(self) -> None:
        ends = await asyncio.gather(*(api.close() for api in self._apis.values()), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    # --- where things are ---

    def _find(self, lock_key: str) -> StoreApi | None:
        for prefix, api in self._by_prefix:
            if lock_key.startswith(prefix):
                return api
        return None

    def _of(self, lock_key: str, field: str = "lockKey") -> StoreApi:
        api = self._find(lock_key)
        if api is None:
            raise self._no_store(lock_key, field)
        return api

    def _no_store(self, text: str, field: str) -> FencegateError:
        known = ", ".join(shown(prefix) for prefix in self._routes.urls)
        return InvalidInput(
            field, f"no store is configured for {text[:200]!r}; there are {known} (--store '*=URL' serves all others)"
        )

    def _of_all(self, lock_keys: Iterable[str]) -> StoreApi:
        """The one store of all of these."""
        first, api = "", None
        for lock_key in lock_keys:
            other = self._of(lock_key)
            if api is None:
                first, api = lock_key, other
            elif other is not api:
                raise self._torn("multi", f"{first!r} and {lock_key!r}", api, other)
        if api is None:
            raise InvalidInput("locks", "must name at least one lock")
        return api

    def _sessions(self) -> StoreApi:
        api = self._find_everything()
        if api is None:
            names = ", ".join(self._names.values())
            raise NotSupported(
                f"sessions live in the store of '*', and there is none: {names}", feature="sessions", store=names
            )
        return api

    def _find_everything(self) -> StoreApi | None:
        url = self._routes.urls.get("")
        return self._apis[url] if url is not None else None

    def _check_session(self, lock_keys: Iterable[str], api: StoreApi) -> None:
        home = self._sessions()
        if home is not api:
            keys = ", ".join(map(repr, lock_keys))
            raise self._torn("sessionId", f"{keys} and the session (which lives in that of {EVERYTHING!r})", api, home)

    def _check_family(self, lock_key: str, api: StoreApi) -> None:
        """A hierarchical lock, those above it and all that may be below it have to be in one store."""
        for above in ancestors(lock_key):
            other = self._find(above)
            if other is not None and other is not api:
                raise self._torn("hierarchical", f"{lock_key!r} and {above!r} above it", api, other)
        for prefix, other in self._by_prefix:
            if prefix.startswith(f"{lock_key}/") and other is not api:
                raise self._torn("hierarchical", f"{lock_key!r} and {prefix!r} below it", api, other)

    def _torn(self, feature: str, what: str, one: StoreApi, other: StoreApi) -> NotSupported:
        names = f"{self._names[one]} and {self._names[other]}"
        return NotSupported(
            f"{what} are kept in two stores, {names}, and nothing can be decided over both at once",
            feature=feature,
            store=names,
        )


def _key(lock: Mapping[str, Any]) -> str:
    key: str = lock["lockKey"]
    return key
