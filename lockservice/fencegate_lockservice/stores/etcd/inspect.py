"""What can be seen of an etcd cluster that makes locks in it safe or unsafe."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fencegate.core.ports import Finding, Unavailable
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.client import Client
from fencegate_lockservice.stores.etcd.endpoint import Endpoint
from fencegate_lockservice.stores.etcd.grpc import NotSent

NEARLY_FULL = 0.8
_CORRUPTING = (((3, 5, 0), (3, 5, 2)),)
_QUOTA = re.compile(r"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)


STATUS, MEMBERS, ALARMS = (
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Cluster/MemberList",
    "/etcdserverpb.Maintenance/Alarm",
)
_ALARM_NAMES = {1: "NOSPACE", 2: "CORRUPT"}


class _Status(NamedTuple):
    version: str
    size: int


async def inspect(client: Client, *, compacts: bool, shows_clock: bool) -> Sequence[Finding]:
    """Never raises Unavailable: that a cluster can't be reached is a finding."""
    found: list[Finding] = []
    statuses = await asyncio.gather(*(_status(client, endpoint) for endpoint in client.endpoints))
    for endpoint, status in zip(client.endpoints, statuses, strict=True):
        if status is None:
            what = f"etcd at {endpoint.name} does not answer"
            found.append(Finding("warning", what, "start it, or take it out of the URL"))
    there = [status for status in statuses if status is not None]
    try:
        found += await _quorum(client)
        found += _alarms(await client.read(ALARMS, b"", proto.parse))
    except Unavailable as error:
        advice = "most members must run and reach each other before any lock is granted"
        found.append(Finding("unsafe", f"the etcd cluster has no quorum: {error}", advice))
    for version in sorted({status.version for status in there}):
        found.append(version_finding(version))
    for endpoint, status in zip(client.endpoints, statuses, strict=True):
        if status is not None:
            found += await _space(endpoint, status)
    if there and not shows_clock:
        what = "the clock of etcd can't be compared with that of this lock service: no member shows the page /version"
        found.append(Finding("warning", what, "serve pages on the client port, or see to NTP: nobody else will notice"))
    found.append(_compaction(compacts))
    return found


async def _status(client: Client, endpoint: Endpoint) -> _Status | None:
    try:
        found = proto.parse(await client.ask_member(endpoint, STATUS, b""))
    except (Unavailable, proto.Malformed):
        return None
    version, size = found.get(2, [b""])[0], found.get(3, [0])[0]
    return _Status(version.decode() if isinstance(version, bytes) else "", int(size))


async def _quorum(client: Client) -> list[Finding]:
    """A list of members that is read linearizably can't be had without a quorum."""
    members = (await client.read(MEMBERS, b"\x08\x01", proto.parse)).get(2, [])
    learning = [isinstance(member, bytes) and 5 in proto.parse(member) for member in members]
    voting = learning.count(False)
    if voting == 1:
        what = "etcd has a single member: while it is down there are no locks, and its disk is the only copy"
        return [Finding("warning", what, "run three or five members")]
    if voting % 2 == 0:
        what = f"etcd has {voting} voting members: no more may fail than with {voting - 1}"
        return [Finding("warning", what, "run an odd number of members")]
    return [Finding("fine", f"etcd has {voting} voting members and a quorum")]


def _alarms(answer: Mapping[int, Sequence[int | bytes]]) -> list[Finding]:
    found = []
    raised = {proto.parse(alarm).get(2, [0])[0] for alarm in answer.get(2, []) if isinstance(alarm, bytes)}
    for name in sorted(_ALARM_NAMES.get(int(number), f"number {number!r}") for number in raised):
        advice = "compact, defragment, raise --quota-backend-bytes, then `etcdctl alarm disarm`"
        if name == "CORRUPT":
            advice = "replace the member whose data differs, then `etcdctl alarm disarm`"
        found.append(Finding("unsafe", f"etcd has the alarm {name}: it takes no commits", advice))
    return found


def version_finding(version: str) -> Finding:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    for first, last in _CORRUPTING:
        if first <= numbers <= last:
            what = f"etcd {version} can corrupt its data when it is killed under load (3.5.0 to 3.5.2)"
            return Finding(
                "warning", what, "upgrade to 3.5.3 or later, and run with --experimental-initial-corrupt-check"
            )
    return Finding("fine", f"etcd {version}")


async def _space(endpoint: Endpoint, status: _Status) -> list[Finding]:
    try:
        metrics = (await endpoint.get("/metrics"))[1].decode(errors="replace")
    except NotSent:
        return []
    quota = _QUOTA.search(metrics)
    if quota is None or (bytes_ := float(quota[1])) <= 0 or status.size < NEARLY_FULL * bytes_:
        return []
    what = f"the database of etcd at {endpoint.name} fills {status.size / bytes_:.0%} of its quota"
    return [
        Finding("warning", what, "defragment it, or raise --quota-backend-bytes; when it is full no lock is granted")
    ]


def _compaction(compacts: bool) -> Finding:
    if compacts:
        what = "the lock service compacts etcd's history: an hour of it, or 100 000 revisions, are kept"
        return Finding("fine", what, "add compact=off to the URL when others who share this etcd need more")
    what = "the lock service does not compact etcd's history (compact=off)"
    return Finding("warning", what, "run etcd with --auto-compaction-retention, or its database fills up")
