"""What the ACL of a Redis server does not let a user do, for the stores and the resource that keep their data there.

A script that the ACL stops in its middle leaves half of its writes behind. So each of them tries all that its scripts
do in a script of its own first, which changes nothing, and tells what failed.
"""

from collections.abc import Iterable, Sequence

_CODES = ("NOAUTH", "WRONGPASS", "NOPERM")
_IN_A_SCRIPT = ("ACL failure in script", "user executing the script can't")
"""How servers say NOPERM of what a script does."""

_AT_THE_DOOR = ("ERR max number of clients", "LOADING", "BUSY")
"""What may be said to a login of which nothing is known yet."""

Tried = Sequence[bytes | str]
"""A command that failed in such a script, the key, and what the server said."""


def is_not_allowed(refusal: str) -> bool:
    """Whether the user is refused, or may not do this: no outage."""
    return any(code in refusal for code in _CODES) or is_forbidden(refusal)


def is_login_refused(refusal: str) -> bool:
    """Whether AUTH was refused for good: wrong, unknown, or the server has no password at all."""
    return not refusal.startswith(_AT_THE_DOOR)


def is_forbidden(refusal: str) -> bool:
    """Whether it is a matter of the ACL."""
    return "NOPERM" in refusal or any(text in refusal for text in _IN_A_SCRIPT)


def lacking(failed: Iterable[Tried], user: str, prefixes: Sequence[str]) -> str:
    """What the user may not do, and how to allow it; empty when it may do all. `prefixes` are those of all that
    was tried."""
    commands: dict[str, None] = {}
    keys: dict[str, None] = {}
    for command, key, refusal in (map(_text, each) for each in failed):
        word = command.lower()
        if not is_forbidden(refusal):
            continue  # the words were refused, as they should be
        if f"'{word}'" in refusal or "can't run this command" in refusal:
            commands[word] = None
        else:
            keys[key] = None
    if not commands and not keys:
        return ""
    begun = dict.fromkeys(next((prefix for prefix in prefixes if key.startswith(prefix)), "") for key in keys)
    needed = [*(f"~{prefix}*" for prefix in begun), *(f"+{word}" for word in commands)]
    named = [*(f"command {word!r}" for word in commands), *(f"key {key!r}" for key in keys)]
    return f"(NOPERM): {', '.join(named)}. ACL SETUSER {user or 'default'} {' '.join(needed)}"


def _text(part: bytes | str) -> str:
    """Some clients decode what they hear."""
    return part if isinstance(part, str) else part.decode(errors="replace")
