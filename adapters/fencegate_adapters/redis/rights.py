"""Whether the user may do all that the scripts do, asked before the first of them could be stopped in its middle."""

from collections.abc import Sequence

from fencegate.core.errors import UnsafeConfiguration
from fencegate.redis_acl import Tried, lacking
from fencegate_adapters.redis import names


def check_rights(failed: Sequence[Tried], server: str, user: str, prefixes: Sequence[str] = ()) -> None:
    """UnsafeConfiguration, which names commands and keys, when what rights.lua tried is not all allowed."""
    if forbidden := lacking(failed, user, [names.OURS, *prefixes]):
        raise UnsafeConfiguration(
            f"{server}: its ACL does not allow what fencing needs, and would stop a write in its middle {forbidden};"
            " the whole line is in docs/resources/redis.md"
        )
