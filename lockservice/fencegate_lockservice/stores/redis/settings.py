"""Which settings of a Redis server make locks in it unsafe, as far as they can be seen."""

from collections.abc import Mapping, Sequence

import hiredis

from fencegate.core.ports import Finding
from fencegate_lockservice.stores.redis.line import Line

_WANTED = (
    "maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write",
)  # fmt: skip
_FAILOVER = (
    "replication does not wait for replicas: a failover loses the last commits, and then two may hold one lock until"
    " the older lease ends"
)


def fields(info: bytes) -> dict[str, str]:
    """What INFO says."""
    lines = [line.partition(":") for line in info.decode(errors="replace").splitlines() if not line.startswith("#")]
    return {name: value.strip() for name, colon, value in lines if colon}


async def look(line: Line) -> Sequence[Finding]:
    """Ask the server for its settings, and judge them."""
    replicas = int(fields(await line.call("INFO", "replication")).get("connected_slaves", "0") or 0)
    settings: dict[str, str] = {}
    try:
        for name in _WANTED:
            pair = await line.call("CONFIG", "GET", name)
            settings[name] = pair[1].decode(errors="replace") if len(pair) > 1 else ""
    except hiredis.ReplyError as error:
        unseen = Finding(
            "warning",
            f"its settings can't be seen (CONFIG is refused: {str(error)[:80]})",
            "make sure that maxmemory-policy is noeviction and appendonly is on",
        )
        return [unseen, *_replicas(settings, replicas)]
    return judge(settings, replicas)


def judge(settings: Mapping[str, str], replicas: int) -> Sequence[Finding]:
    return [_eviction(settings), _durability(settings), *_replicas(settings, replicas)]


def _eviction(settings: Mapping[str, str]) -> Finding:
    policy = settings.get("maxmemory-policy", "")
    if policy == "noeviction":
        return Finding("fine", "maxmemory-policy is noeviction: a lock is never evicted")
    if settings.get("maxmemory", "0") == "0":
        return Finding(
            "warning",
            f"maxmemory-policy is {policy}: locks may be evicted as soon as maxmemory is set",
            "CONFIG SET maxmemory-policy noeviction",
        )
    if policy.startswith("volatile"):  # only what is kept for a time has a TTL in Redis
        return Finding(
            "warning",
            f"maxmemory-policy is {policy}: locks have no TTL in Redis, so they stay; but what was settled has, and"
            " without it a request that is sent again may take its lock anew",
            "CONFIG SET maxmemory-policy noeviction",
        )
    return Finding(
        "unsafe",
        f"maxmemory-policy is {policy}: a held lock may be evicted, and given to a second holder",
        "CONFIG SET maxmemory-policy noeviction, or use a server of its own for locks",
    )


def _durability(settings: Mapping[str, str]) -> Finding:
    if settings.get("appendonly") != "yes":
        return Finding(
            "warning",
            "appendonly is off: a restart of the server forgets who holds what (an efficiency lock only)",
            "set appendonly yes and appendfsync always",
        )
    fsync = settings.get("appendfsync", "")
    if fsync != "always":
        lost = "the last second of commits" if fsync == "everysec" else "whatever the system had not written yet"
        return Finding(
            "warning",
            f"appendfsync is {fsync}: a power loss forgets {lost}, and then two may hold one lock until the older"
            " lease ends",
            "set appendfsync always",
        )
    if settings.get("no-appendfsync-on-rewrite") == "yes":
        return Finding(
            "warning",
            "no-appendfsync-on-rewrite is yes: while the server rewrites its file, or saves, nothing is flushed, and a"
            " power loss forgets those commits",
            "set no-appendfsync-on-rewrite no",
        )
    return Finding("fine", "every commit is on disk before it is answered (appendonly, appendfsync always)")


def _replicas(settings: Mapping[str, str], replicas: int) -> Sequence[Finding]:
    if replicas == 0:
        return []
    advice = "fence the resource (tokens still rise), or keep locks in a store with a quorum"
    if settings.get("min-replicas-to-write", "0") not in ("0", ""):
        return [Finding("warning", f"{_FAILOVER} (min-replicas-to-write narrows it)", advice)]
    return [Finding("warning", _FAILOVER, advice)]
