"""What the server said, as redis-py tells it, and what a refusal means for whoever asked."""

import re

from redis import exceptions

from fencegate.core.errors import FencegateError, ResourceUnavailable, UnsafeConfiguration
from fencegate.redis_acl import is_forbidden

_KNOWN = {
    "READONLY": "it is a read-only replica: give the address of the primary",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "LOADING": "it is still loading its data",
    "OOM": "it is out of memory: raise maxmemory",
    "MISCONF": "it can't save to disk, and takes no writes until it can",
    "NOREPLICAS": "too few replicas are connected for min-replicas-to-write",
    "BUSY": "another script keeps it busy",
    "NOAUTH": "it wants a password, or another",
    "WRONGTYPE": "a key of Fencegate is used by others",
    "NOPERM": "its ACL does not allow what fencing needs, ACL SETUSER as docs/resources/redis.md says",
}
# redis-py takes the code away from the text of these.
_CLASSES: dict[type[Exception], str] = {
    exceptions.ReadOnlyError: "READONLY",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.AuthenticationError: "NOAUTH",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.AskError: "MOVED",
    exceptions.ClusterCrossSlotError: "MOVED",
    exceptions.ClusterDownError: "MOVED",
}
# Older servers tell the code inside of a longer text.
_CODE = re.compile(rf"\b({'|'.join(_KNOWN)})\b")

Refusal = exceptions.ResponseError | exceptions.BusyLoadingError | exceptions.AuthenticationError
REFUSALS = (exceptions.ResponseError, exceptions.BusyLoadingError, exceptions.AuthenticationError)
"""What redis-py raises for an answer: the server was reached. Some look as if the connection were lost."""


def code_of(refusal: Exception | str) -> str:
    """The kind of a refusal; empty when it is none that is known."""
    code = next((code for kind, code in _CLASSES.items() if isinstance(refusal, kind)), "")
    found = None if code else _CODE.search(str(refusal))
    if found is None and not code and is_forbidden(str(refusal)):
        return "NOPERM"
    return code if found is None else found[1]


def failure_of(refusal: Exception, server: str, outcome: str) -> FencegateError:
    """What is told to the caller of a command that the server did not run to its end.

    Most that are known come before the first write of a script. What is not known may have happened in its middle, and
    so may a command that the ACL forbids: then `outcome` is what is known of it.
    """
    code = code_of(refusal)
    if code == "MOVED":
        return cluster(server)
    if not code:
        return ResourceUnavailable(f"{server}: {str(refusal)[:200]}", outcome=outcome)
    if code == "NOPERM":
        return ResourceUnavailable(f"{server}: {_KNOWN[code]} ({code}): {str(refusal)[:200]}", outcome=outcome)
    return refused(server, code)


def refused(server: str, code: str) -> ResourceUnavailable:
    return ResourceUnavailable(f"{server}: {_KNOWN[code]} ({code})")


def unreachable(server: str, error: Exception) -> ResourceUnavailable:
    return ResourceUnavailable(f"{server} can't be reached: {str(error)[:200]}")


def unanswered(server: str, error: Exception, outcome: str) -> ResourceUnavailable:
    return ResourceUnavailable(f"{server} did not answer: {str(error)[:200]}", outcome=outcome)


def queued(server: str) -> ResourceUnavailable:
    detail = (
        f"{server}: somebody left a MULTI open on this connection, and its EXEC decides whether this is carried out"
    )
    return ResourceUnavailable(detail, outcome="unknown")


def too_few(server: str, reached: int, wanted: int) -> ResourceUnavailable:
    detail = f"{server}: {reached} of {wanted} replicas have the write, so a failover may lose it"
    return ResourceUnavailable(detail, outcome="unknown")


def not_told(server: str, refusal: Exception) -> ResourceUnavailable:
    detail = f"{server} has the write, but did not tell whether its replicas have it: {str(refusal)[:200]}"
    return ResourceUnavailable(detail, outcome="unknown")


def cluster(server: str) -> UnsafeConfiguration:
    return UnsafeConfiguration(
        f"{server} is a cluster: a fence and what it guards would be on different nodes; use a server that is none"
    )


def is_stale(answer: object) -> bool:
    """Whether a script wrote nothing at all: then there is nothing that replicas could lack."""
    return isinstance(answer, list) and answer[:1] == [b"stale"]


def text(answer: bytes | str) -> str:
    """A word of ours in an answer, whether the client decodes answers or not."""
    return answer.decode() if isinstance(answer, bytes) else answer
