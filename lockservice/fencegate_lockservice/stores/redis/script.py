"""The Lua scripts of the Redis store, and what a refusal of the server means for whoever asked."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources

from fencegate.core.ports import Ambiguous, Unavailable
from fencegate.redis_acl import is_forbidden

_FOLDER = resources.files(__package__)

_PARTS: Mapping[str, Sequence[str]] = {
    "commit": ("names", "commit", "tidy"),
    "alone": ("alone", "names", "tidy"),  # in this order: it seldom comes to what needs names
    "rights": ("names", "rights"),
}
"""What a script is made of, where it is not as those that read."""


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text("utf-8")


class Script:
    """A script and the name that the server knows it by."""

    def __init__(self, name: str, prefix: str) -> None:
        parts = _PARTS.get(name, ("names", "reading", name))
        self.text = "\n".join(_text(part) for part in parts).replace("{prefix}", prefix)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """All of them, for names that begin with this prefix."""

    def __init__(self, prefix: str) -> None:
        quoted = "".join(f"\\{byte:03d}" for byte in prefix.encode())
        self.commit, self.alone, self.load, self.scan, self.enter, self.lines, self.rights = self.all = tuple(
            Script(name, quoted) for name in ("commit", "alone", "load", "scan", "enter", "lines", "rights")
        )


USED_BY_OTHERS = "give this store a ?prefix= or a database of its own"

# Older servers tell them inside of a longer text.
_KNOWN = {
    "READONLY": "it is a read-only replica: give the address of the primary",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "LOADING": "it is still loading its data",
    "OOM": "it is out of memory: raise maxmemory",
    "MISCONF": "it can't save to disk, and takes no writes until it can",
    "NOREPLICAS": "too few replicas are connected for min-replicas-to-write",
    "BUSY": "another script keeps it busy",
    "NOAUTH": "it wants a password: put it into the URL",
    "WRONGPASS": "it refuses the user name or password of the URL",
    "NOPERM": "its ACL does not allow what the lock store needs, ACL SETUSER as docs/stores/redis.md says",
    "NOSCRIPT": "it forgot the scripts of the lock store",
    "WRONGTYPE": f"a key of the lock store is used by others: {USED_BY_OTHERS}",
    "MOVED": "it is a cluster, which the lock store can't use",
}
_CODE = re.compile(rf"\b({'|'.join(_KNOWN)})\b")
_ELSEWHERE = ("READONLY", "MASTERDOWN")
_IN_THE_MIDDLE = ("", "NOPERM", "WRONGTYPE")
"""What is told of a single command, when others of the same script may have written before it."""


def code_of(refusal: Exception) -> str:
    """The kind of a refusal; empty when it is none that is known."""
    found = _CODE.search(str(refusal))
    if found is None and is_forbidden(str(refusal)):
        return "NOPERM"
    return found[1] if found is not None else ""


def failure_of(refusal: Exception, server: str) -> Exception:
    """What the caller of a script is told. Most that are known come before the first write of a script; what is not
    known may have happened in its middle, and so may a command that the ACL forbids, or one about another's key."""
    code = code_of(refusal)
    text = f"{server}: {_KNOWN[code]} ({code})" if code else f"{server}: {str(refusal)[:200]}"
    if code == "NOPERM":
        text += f": {str(refusal)[:200]}"
    return Ambiguous(text) if code in _IN_THE_MIDDLE else Unavailable(text)


def is_elsewhere(refusal: Exception) -> bool:
    """Whether the primary has moved: behind the same address there may be another server by now."""
    return code_of(refusal) in _ELSEWHERE
