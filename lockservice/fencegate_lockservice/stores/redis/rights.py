"""Whether the user of the URL may do all that the store does, asked before the first commit could be stopped in its
middle."""

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.model import DONE, FLOORS, LOCKS, MEMBERS, SESSIONS
from fencegate_lockservice.stores.redis.line import Line
from fencegate_lockservice.stores.redis.script import Script, code_of
from fencegate_lockservice.stores.redis.url import Address

KINDS = (LOCKS, DONE, FLOORS, SESSIONS, MEMBERS, "history/", "route/", "")
"""How the keys of entries begin; the last is for those that have no kind."""


async def check_rights(line: Line, address: Address, script: Script) -> None:
    """UnsafeConfiguration, which names the commands and keys, when it may not."""
    commands: dict[str, None] = {}
    keys: dict[str, None] = {}
    for command, name, refusal in await line.call("EVALSHA", script.sha, 0, *KINDS):
        text, word = refusal.decode(errors="replace"), command.decode().lower()
        if code_of(Exception(text)) != "NOPERM":
            continue  # the words were refused, as they should be
        if f"'{word}'" in text:
            commands[word] = None
        else:
            keys[name.decode(errors="replace")] = None
    if not commands and not keys:
        return
    grants = [*([f"~{address.prefix}*"] if keys else []), *(f"+{word}" for word in commands)]
    lacking = [*(f"command {word!r}" for word in commands), *(f"key {name!r}" for name in keys)]
    raise UnsafeConfiguration(
        f"{address}: its ACL does not allow what the lock store needs, and would stop a commit in its middle (NOPERM):"
        f" {', '.join(lacking)}. ACL SETUSER {address.username or 'default'} {' '.join(grants)}; the whole line is in"
        " docs/stores/redis.md"
    )
