"""The passage of one lease through its fence, command by command, whichever client carries it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fencegate.clock import SYSTEM
from fencegate.core.errors import InvalidInput, ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.redis_acl import Tried
from fencegate_adapters.redis import names, server
from fencegate_adapters.redis.commands import Command
from fencegate_adapters.redis.lease import Lease, ensure_held, fence_of
from fencegate_adapters.redis.link import Argument
from fencegate_adapters.redis.replies import code_of, refused, text
from fencegate_adapters.redis.rights import check_rights

T = TypeVar("T")
SERVER = "Redis"
_LOST = (
    "Redis has lost its fences since this lease was first used: it was flushed, restored or failed over. Stop, and "
    "take the lock anew"
)


class Passage:
    """What is said to the script `command.lua`, and what its answer means."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        fence, self._token = fence_of(lease)
        self.keys = [names.fence_name(fence), names.BORN, names.FLOOR]
        self.tried: list[Argument] = ["command", *self.keys]
        """What is said to rights.lua."""
        self._born = ""

    def arguments(self, command: Command[Any] | None) -> list[Argument]:
        """What to send; LockLost when the lease is over already."""
        ensure_held(self._lease)
        words = command.words if command is not None else ()
        return [self._token.wire, self._born, SYSTEM.random_id(8), *words]

    def judged(self, answer: list[Any]) -> Any:
        """What the command answered; raises what was refused."""
        verdict, *rest = text(answer[0]), *answer[1:]
        match verdict:
            case "ok":
                self._born = text(rest[0])
                return rest[1] if len(rest) > 1 else None
            case "stale":
                raise StaleToken(self._token, int(rest[0]))
            case "lost":
                raise UnsafeConfiguration(_LOST)
            case "error":
                self._born = text(rest[0])
                raise _refusal(text(rest[1]))
            case _:
                raise ResourceUnavailable("the fence is damaged: its mark is not a number, so nothing is accepted")


def check(info: bytes | str | Mapping[str, Any], failed: Sequence[Tried], pool: Any) -> None:
    """Whether fences can be trusted to this server, and to this user; asked once for each pool of connections."""
    server.check(SERVER, server.fields(info) if isinstance(info, bytes | str) else info)
    check_rights(failed, SERVER, pool.connection_kwargs.get("username") or "")


def _refusal(said: str) -> Exception:
    """The command itself was refused, so it did nothing."""
    code = code_of(said)
    if code in ("", "WRONGTYPE", "MOVED"):
        return InvalidInput("command", said[:200])
    return refused(SERVER, code)
