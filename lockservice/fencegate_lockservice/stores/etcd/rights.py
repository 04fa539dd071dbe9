"""Whether the user of the URL may read and write all keys of the store, asked before the first commit."""

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.client import DENIED, TXN, Client
from fencegate_lockservice.stores.etcd.keys import Keys

_NEVER = b"\0"
"""No value of ours is this one."""


async def check_rights(client: Client, keys: Keys) -> None:
    """UnsafeConfiguration, which names what has to be granted, when it may not."""
    if await _may(client, keys.ranges):
        return
    needed = dict.fromkeys(
        [keys.granted(first) for first, end in keys.ranges if not await _may(client, [(first, end)])]
    )
    grants = [f"`etcdctl role grant-permission --prefix ROLE readwrite {prefix}`" for prefix in needed]
    raise UnsafeConfiguration(
        f"etcd refuses the user of the URL: {DENIED}; it needs readwrite on all keys below the URL's root: "
        f"{' and '.join(grants)}, where ROLE is a role of that user"
    )


async def _may(client: Client, ranges: list[tuple[bytes, bytes]]) -> bool:
    """etcd asks for the rights of all that a transaction could do. This one does nothing, for what it compares is never
    so."""
    operations = [operation for where in ranges for operation in (proto.read(*where), proto.delete(*where))]
    try:
        await client.read(TXN, proto.txn([proto.equals(ranges[0][0], _NEVER)], operations), proto.succeeded)
    except Unavailable as error:
        if str(error).startswith(DENIED):
            return False
        raise
    return True
