"""The change log in Redis: a stream, one entry for the commits that went together, whose id is the revision.

Each commit is a field of its entry: who wrote it, and its lines as the value. An entry `reign` says that lines may be
missing before it.
"""

from collections.abc import Sequence

import msgspec

from fencegate.core.ports import LogEntry

REIGN = b"reign"

Row = tuple[bytes, list[bytes]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


def encode(log: Sequence[tuple[str, bytes]]) -> bytes:
    """The lines of a commit; empty when there are none."""
    return _encode(log) if log else b""


def revision_of(row: Row) -> int:
    return int(row[0].partition(b"-")[0])


def has_break(rows: Sequence[Row]) -> bool:
    return any(row[1][0] == REIGN for row in rows)


def decode(rows: Sequence[Row]) -> list[LogEntry]:
    found = []
    for row in rows:
        revision = revision_of(row)
        lines = [line for commit in row[1][1::2] for line in _decode(commit)]
        for number, (key, event) in enumerate(lines):
            found.append(LogEntry(revision, number, key, event))
    return found
