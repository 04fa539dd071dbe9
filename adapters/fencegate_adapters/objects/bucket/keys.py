"""Where in a bucket things are: the keys of objects, fences and bodies.

fencegate.json                     the record
objects/reports/2024.csv.fg        the frame of the object `reports/2024.csv`
fences/DIGEST.fg                   the frame of a fence that no single object carries
bodies/reports/2024.csv/TOKEN-NONCE    a body, in layout `pointer`
probes/NONCE                       what the probe at the start tries its conditions on

Names go into keys with all but letters, digits, `-`, `_` and `.` percent-encoded byte by byte, so that no server folds,
trims or normalises them. The ending `.fg` tells readers that this is a frame and no plain file, and that `a` and `a/b`
are no file and directory of one name, which servers that keep a tree can't hold both.
"""

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

from fencegate.core.errors import InvalidInput
from fencegate.core.names import Guard, check_path
from fencegate.core.ports import Key

RECORD = "fencegate.json"
OBJECTS = "objects/"
FENCES = "fences/"
BODIES = "bodies/"
PROBES = "probes/"
ENDING = ".fg"

MAX_KEY_BYTES = 1024
"""Of S3 and Azure; the longest key that we make for a name must fit."""
_LONGEST_AROUND = len("bodies/") + len("/") + 19 + 1 + 32

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_WRITTEN = tuple(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in range(256))
_ESCAPE = re.compile(rb"%([0-9a-f]{2})")
_BODY = re.compile(r"(?P<token>[0-9]{19})-[0-9a-f]{32}")
_HOLE = re.compile(r"\{(key|resource)\}")


class Place(NamedTuple):
    """Where a frame is, and the name that it must bear; empty when that is to be read from it."""

    key: str
    name: str


def object_name(key: Key) -> str:
    """The name of the object under `key`; InvalidInput when it can't be one."""
    return check_path("key", "/".join(key))


@lru_cache(4096)
def object_place(name: str, prefix: str = "") -> Place:
    """Where the object of this name is, in a bucket whose keys all begin with `prefix`.

    >>> object_place("Logs/é").key
    'objects/Logs/%c3%a9.fg'
    """
    written = _segments(name)
    if len(prefix) + 1 + len(written) + _LONGEST_AROUND > MAX_KEY_BYTES:
        raise InvalidInput("key", f"is too long: it would need a key of more than {MAX_KEY_BYTES} bytes in the bucket")
    return Place(f"{OBJECTS}{written}{ENDING}", name)


def fence_place(fence: str) -> Place:
    return Place(f"{FENCES}{hashlib.sha256(fence.encode()).hexdigest()}{ENDING}", fence)


def bodies_of(name: str) -> str:
    """What the keys of all bodies of this object begin with."""
    return BODIES + "".join(f"{_folder(segment)}/" for segment in name.split("/"))


def body_key(name: str, token: int, nonce: str) -> str:
    return f"{bodies_of(name)}{token:019d}-{nonce}"


def body_token(name: str, key: str) -> int | None:
    """The token of this body; None when the key is not that of a body of this object."""
    found = _BODY.fullmatch(key.removeprefix(bodies_of(name)))
    return int(found["token"]) if found is not None else None


def name_of(key: str) -> str | None:
    """The name of the object whose frame has this key; None when it is not one of ours."""
    if not (key.startswith(OBJECTS) and key.endswith(ENDING) and key.isascii()):
        return None
    written = key[len(OBJECTS) : -len(ENDING)].replace("%/", "/").encode()
    raw = _ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), written)
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None
    return name if f"{OBJECTS}{_segments(name)}{ENDING}" == key else None


def name_prefix(prefix: str) -> str:
    """What the keys of all objects begin with whose names begin with `prefix`."""
    *folders, last = prefix.split("/")
    return OBJECTS + "".join(f"{_folder(segment)}/" for segment in folders) + _quoted(last)


def just_below(key_prefix: str) -> str:
    """A key below every key that begins so, and above all others of ours that are below it."""
    start, before = key_prefix[:-1], chr(ord(key_prefix[-1]) - 1)
    if before == "/" and start.endswith(("/", ".")):  # no directory ends so; then it is the dot that comes before a 0
        before = "."
    return f"{start}{before}~"


class Homes:
    """Which place holds the mark of a fence: the object itself, where the guard names a lock for each object."""

    def __init__(self, guard: Guard, prefix: str = "") -> None:
        self._prefix = prefix
        self._pattern = _inverse(guard)

    @property
    def one_by_one(self) -> bool:
        """Whether each object has a fence of its own, so that check and write are one step."""
        return self._pattern is not None

    def place(self, fence: str) -> Place:
        found = self._pattern.fullmatch(fence) if self._pattern is not None else None
        if found is None:
            return fence_place(fence)
        try:
            return object_place(check_path("key", found["key"]), self._prefix)
        except InvalidInput:  # no object can have this lock
            return fence_place(fence)


def _inverse(guard: Guard) -> re.Pattern[str] | None:
    if guard.covers_all:
        return None
    pattern, at, seen = "", 0, False
    for hole in _HOLE.finditer(guard.template):
        pattern += re.escape(guard.template[at : hole.start()])
        if hole[1] == "resource":
            pattern += re.escape(guard.resource)
        else:
            pattern += "(?P=key)" if seen else "(?P<key>.+)"
            seen = True
        at = hole.end()
    return re.compile(pattern + re.escape(guard.template[at:]), re.DOTALL)


def _segments(name: str) -> str:
    *folders, last = name.split("/")
    return "".join(f"{_folder(segment)}/" for segment in folders) + _quoted(last)


def _folder(segment: str) -> str:
    """A directory never ends as a frame does, nor in a dot, which Azure trims; what it begins with stays."""
    written = _quoted(segment)
    return f"{written}%" if written.endswith((ENDING, ".")) else written


def _quoted(segment: str) -> str:
    return "".join(_WRITTEN[byte] for byte in segment.encode())
