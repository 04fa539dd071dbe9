"""What can be seen of a ZooKeeper ensemble from outside: by its four-letter words, as far as they are allowed."""

import asyncio
from collections.abc import Sequence

from fencegate.core.ports import Finding
from fencegate_lockservice.stores.zookeeper.line import Address

ANSWER_WITHIN_S = 3.0


async def inspect_servers(address: Address) -> Sequence[Finding]:
    said = await asyncio.gather(*(_ask(server, b"srvr") for server in address.servers))
    findings = [*_of_ensemble(address, said), *await _of_followers(address, said)]
    if address.acl_is_open:
        findings.append(
            Finding(
                "warning",
                "everybody who reaches ZooKeeper may read and change the locks",
                "give the store a user and a password (zookeeper://USER:PASSWORD@…) or close the network",
            )
        )
    return findings


def _of_ensemble(address: Address, said: Sequence[str | None]) -> list[Finding]:
    findings: list[Finding] = []
    modes: list[str] = []
    for (host, port), text in zip(address.servers, said, strict=True):
        mode = _word(text or "", "Mode:")
        if text is None:
            findings.append(Finding("warning", f"{host}:{port} does not answer", "start it, or take it out of the URL"))
        elif not mode:
            findings.append(
                Finding(
                    "warning",
                    f"{host}:{port} does not say whether it is part of a quorum",
                    "allow it: 4lw.commands.whitelist=srvr,mntr",
                )
            )
        else:
            modes.append(mode)
    if "standalone" in modes:
        findings.append(
            Finding(
                "warning",
                "ZooKeeper runs as a single server: when its disk is lost, the locks are lost",
                "use an ensemble of three or five",
            )
        )
        if len(address.servers) > 1:
            findings.append(
                Finding(
                    "unsafe",
                    "the URL names several servers, and one of them is no part of an ensemble: two of them would"
                    " grant the same lock",
                    "name the members of one ensemble",
                )
            )
    elif modes and len(address.servers) == 1:
        findings.append(
            Finding(
                "warning",
                "the URL names one server of an ensemble: without that one there are no locks",
                "name all of them, as in zookeeper://A:2181,B:2181,C:2181",
            )
        )
    elif modes:
        findings.append(Finding("fine", f"an ensemble: {', '.join(sorted(modes))}"))
    return findings


async def _of_followers(address: Address, said: Sequence[str | None]) -> list[Finding]:
    """The leader knows how many follow it."""
    for server, text in zip(address.servers, said, strict=True):
        if _word(text or "", "Mode:") != "leader":
            continue
        told = await _ask(server, b"mntr") or ""
        size, synced = _word(told, "zk_quorum_size"), _word(told, "zk_synced_followers")
        if not size.isdigit() or not synced.isdigit():
            return [
                Finding(
                    "warning",
                    "how many servers follow the leader can't be seen",
                    "allow it: 4lw.commands.whitelist=srvr,mntr",
                )
            ]
        members = int(size)
        if int(synced) + 1 < members:
            return [
                Finding(
                    "warning",
                    f"{int(synced) + 1} of the {members} servers of the ensemble are in step",
                    "look after the others before another fails",
                )
            ]
        return [Finding("fine", f"all {members} servers of the ensemble are in step")]
    return []


def _word(text: str, name: str) -> str:
    """What follows `name` on its line."""
    for line in text.splitlines():
        if line.startswith(name):
            return line.removeprefix(name).strip()
    return ""


async def _ask(server: tuple[str, int], word: bytes) -> str | None:
    """The answer to a four-letter word; None when the server can't be reached."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(*server)
            try:
                writer.write(word)
                return (await reader.read(65536)).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
