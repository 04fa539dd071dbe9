"""Whether the user of the URL may do all that the store does, asked before the first commit could be stopped in its
middle."""

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.model import DONE, FLOORS, LOCKS, MEMBERS, SESSIONS
from fencegate.redis_acl import lacking
from fencegate_lockservice.stores.redis.line import Line
from fencegate_lockservice.stores.redis.script import Script
from fencegate_lockservice.stores.redis.url import Address

KINDS = (LOCKS, DONE, FLOORS, SESSIONS, MEMBERS, "history/", "route/", "")
"""How the keys of entries begin; the last is for those that have no kind."""


async def check_rights(line: Line, address: Address, script: Script) -> None:
    """UnsafeConfiguration, which names the commands and keys, when it may not."""
    failed = await line.call("EVALSHA", script.sha, 0, *KINDS)
    if forbidden := lacking(failed, address.username, [address.prefix]):
        raise UnsafeConfiguration(
            f"{address}: its ACL does not allow what the lock store needs, and would stop a commit in its middle"
            f" {forbidden}; the whole line is in docs/stores/redis.md"
        )
