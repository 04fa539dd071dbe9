"""The stale check: the only place in Python where a token is compared with a mark.

A resource that can compare by itself (SQL, Lua) does it there, inside the step that writes; this is for the ones that
can't, and it must run under whatever makes that step exclusive.
"""

from fencegate.core.errors import StaleToken


def admit(token: int, mark: int) -> int:
    """The new mark of a fence that has seen `mark` and is shown `token`; raises `StaleToken` when that is lower.

    Equal is accepted, for a holder writes many times.
    """
    if token < mark:
        raise StaleToken(token, mark)
    return token
