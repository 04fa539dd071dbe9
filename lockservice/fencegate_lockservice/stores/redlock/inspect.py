"""What can be seen of the settings of the nodes that makes locks in them safe or unsafe."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fencegate.core.ports import Finding
from fencegate_lockservice.stores.redlock.node import Node
from fencegate_lockservice.stores.redlock.polls import poll

WITHIN_S = 3.0
SETTINGS = (
    "appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory", "maxmemory-policy", "cluster-enabled",
)  # fmt: skip


async def inspect(nodes: Sequence[Node]) -> Sequence[Finding]:
    """Findings of each node, and of how many there are."""
    told, replication = await asyncio.gather(
        asyncio.gather(*(_asked(nodes, "CONFIG", "GET", setting) for setting in SETTINGS)),  # older ones tell one each
        _asked(nodes, "INFO", "replication"),
    )
    settings = {
        node.number: _pairs([part for answers in told for part in answers[node.number]])
        for node in nodes
        if all(node.number in answers for answers in told)
    }
    findings = [*_count(nodes)]
    for node in nodes:
        name = node.seat.name
        if node.number not in settings:
            why = f"{name} does not tell its settings" if node.up else f"{name} can't be reached: {node.error}"
            findings.append(Finding("warning", why, "let us run CONFIG GET there, or see to it that it answers"))
            continue
        found = _judge(name, settings[node.number])
        if b"role:slave" in replication.get(node.number, b""):
            found.append(Finding("unsafe", f"{name} is a replica", "name servers that are independent of each other"))
        findings += found or [Finding("fine", f"{name} flushes every vote to disk before it answers")]
    return findings


async def _asked(nodes: Sequence[Node], *command: str) -> dict[int, Any]:
    return await poll({node.number: node.call(*command) for node in nodes}, WITHIN_S)


def _count(nodes: Sequence[Node]) -> list[Finding]:
    down = [node for node in nodes if not node.up]
    spare = len(nodes) - len(nodes) // 2 - 1 - len(down)
    findings = []
    if len(nodes) % 2 == 0:
        text = f"{len(nodes)} nodes stand no more losses than {len(nodes) - 1} do"
        findings.append(Finding("warning", text, "use 3 or 5 nodes"))
    if down and spare <= 0:
        findings.append(Finding("warning", "no further node may be lost", "bring back those that are down"))
    return findings


def _judge(name: str, settings: dict[str, str]) -> list[Finding]:
    found = []
    if settings.get("appendonly") != "yes" or settings.get("appendfsync") != "always":
        text = f"{name} may forget its votes (appendonly {settings.get('appendonly')}, appendfsync"
        text += f" {settings.get('appendfsync')}), and a node that forgets breaks the majority"
        found.append(Finding("unsafe", text, "set appendonly yes and appendfsync always"))
    elif settings.get("no-appendfsync-on-rewrite") == "yes":
        text = f"{name} may forget its votes: it flushes none while it rewrites its file (no-appendfsync-on-rewrite)"
        found.append(Finding("unsafe", text, "set no-appendfsync-on-rewrite no"))
    policy = settings.get("maxmemory-policy", "noeviction")
    if settings.get("maxmemory", "0") != "0" and policy != "noeviction":
        text = f"{name} has maxmemory-policy {policy}: votes may be evicted"
        found.append(Finding("unsafe", text, "set maxmemory-policy noeviction"))
    if settings.get("cluster-enabled") == "yes":
        text = f"{name} is part of a cluster, and scripts touch several keys"
        found.append(Finding("unsafe", text, "name independent servers, without cluster mode"))
    return found


def _pairs(answer: Sequence[Any]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in zip(answer[::2], answer[1::2], strict=True)}
