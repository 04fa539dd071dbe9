"""Whether the access lists in ZooKeeper allow all that the store does, asked before the first commit."""

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from fencegate.core.errors import UnsafeConfiguration
from fencegate_lockservice.stores.zookeeper import wire
from fencegate_lockservice.stores.zookeeper.connection import Connection
from fencegate_lockservice.stores.zookeeper.line import Address
from fencegate_lockservice.stores.zookeeper.wire import Op, Refused

Answer = TypeVar("Answer")


def lacking(address: Address, path: str, right: str) -> UnsafeConfiguration:
    """What is told: the node, the right, and how to give it."""
    who, grant = ("the user of the URL", "auth::cdrwa") if address.user else ("anybody", "world:anyone:cdrwa")
    first = "as that user (addauth digest) or an administrator, " if address.user else ""
    return UnsafeConfiguration(
        f"{path} in ZooKeeper does not give {who} the right to {right} there:"
        f" {first}`setAcl -R {address.root} {grant}`."
        " Where it belongs to another user, check user and password of the URL"
    )


async def allowed(address: Address, path: str, right: str, asked: Awaitable[Answer]) -> Answer:
    """The answer; UnsafeConfiguration when it is refused for this right."""
    try:
        return await asked
    except Refused as refused:
        if refused.code == wire.NO_AUTH:
            raise lacking(address, path, right) from None
        raise


async def check_rights(
    connection: Connection, address: Address, folders: Sequence[str], written: Sequence[str], nothing: str
) -> None:
    """UnsafeConfiguration when these folders can't be used. `nothing` is a name that no node has.

    A multi asks for the rights of one operation after the other. This one does nothing, for its last operation fails.
    """
    asked: list[tuple[Op, str, str]] = []
    for path in folders:
        asked.append((wire.create(f"{path}/{nothing}", b"", address.acl), path, "create"))
        asked.append((wire.delete(f"{path}/{nothing}"), path, "delete"))
    asked += [(wire.put(path, b""), path, "write") for path in written]
    reading = [(path, connection.get(path)) for path in folders]
    trying = connection.multi([*(op for op, _, _ in asked), wire.check(f"{address.root}/{nothing}")])
    for path, read in reading:
        await allowed(address, path, "read", read)
    try:
        await trying
    except Refused as refused:
        if refused.code == wire.NO_AUTH and refused.place < len(asked):
            raise lacking(address, *asked[refused.place][1:]) from None
        if refused.code != wire.NO_NODE:
            raise
