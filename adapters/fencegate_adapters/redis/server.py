"""What can be seen of a Redis server that bears on fences: whether it may be used, and what it keeps over a crash."""

from collections.abc import Mapping
from typing import NamedTuple

from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters.redis.replies import cluster

OLDEST = (6, 2)
STEP = "mark and value change in one Lua script on one server. "


class Facts(NamedTuple):
    """What INFO tells, and the settings that CONFIG tells where it is allowed."""

    info: Mapping[str, str]
    fsync: str | None
    """`appendfsync`; None when it can't be seen."""
    always: bool = True
    """Not `no-appendfsync-on-rewrite`."""


def fields(info: bytes | str) -> dict[str, str]:
    """What INFO says."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else info
    lines = [line.partition(":") for line in text.splitlines() if not line.startswith("#")]
    return {name: value.strip() for name, colon, value in lines if colon}


def check(server: str, info: Mapping[str, str]) -> None:
    """UnsafeConfiguration when fences can't be trusted to a server like this."""
    if info.get("redis_mode", info.get("server_mode")) == "cluster":
        raise cluster(server)
    version = info.get("redis_version", "")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        raise UnsafeConfiguration(f"{server} is of version {version or '?'}: at least 6.2 is needed")
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys"):
        raise UnsafeConfiguration(
            f"{server}: maxmemory-policy is {policy}: an evicted fence has forgotten its holders, and a stale write "
            "passes. CONFIG SET maxmemory-policy noeviction, or use a server of its own"
        )
    if info.get("role", "master") != "master":
        raise UnsafeConfiguration(f"{server} is a replica: give the address of the primary")


def durability(facts: Facts, replicas: int) -> str:
    """What becomes of marks, in one or two sentences."""
    told = STEP + _on_disk(facts)
    if int(facts.info.get("connected_slaves", "0") or 0) or replicas:
        awaited = f"{replicas} of them have" if replicas > 1 else "one of them has"
        waits = f"a write is acknowledged when {awaited} it in memory" if replicas else "writes do not wait for them"
        told += (
            f" It has replicas, and {waits}: a failover to one that missed writes loses marks with the values. "
            "Raise the floor after it."
        )
    return told + " After a restore or a flush the floor has to be raised."


def _on_disk(facts: Facts) -> str:
    if facts.info.get("aof_enabled") != "1":
        return "WARNING: appendonly is off, so a restart of the server loses marks: set appendonly yes."
    if facts.fsync is None:
        return "Both are in the append-only file; how soon it is flushed can't be seen here (appendfsync)."
    if facts.fsync == "always" and not facts.always:
        return (
            "WARNING: no-appendfsync-on-rewrite is yes, so a power loss while it rewrites its file, or saves, loses "
            "what came meanwhile, marks included: set it to no."
        )
    if facts.fsync == "always":
        return "Both are on disk before the answer (appendonly, appendfsync always)."
    lost = "the last second" if facts.fsync == "everysec" else "whatever the system had not written"
    return f"WARNING: appendfsync is {facts.fsync}, so a power loss loses {lost}, marks included: set it to always."
