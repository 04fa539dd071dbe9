"""For whoever reads a frame without Fencegate: what it holds, as a function and as a command.

aws s3 cp s3://bucket/prefix/objects/reports/2024.csv.fg - | python -m fencegate_adapters.objects.raw > 2024.csv

A frame that only points to its body says on standard error where that is, and the exit code is 3; a removed object
gives 1, and what is no frame 2.
"""

import sys
from typing import NamedTuple

from fencegate_adapters.objects import frame


class Unframed(NamedTuple):
    """What a frame holds."""

    header: frame.Header
    body: bytes
    body_key: str
    """Where the body is, below the resource's prefix, when it is not here; else empty."""


def unframe(data: bytes) -> Unframed:
    """Take a whole frame apart; `frame.BadFrame` when it is none.

    >>> unframe(open("2024.csv.fg", "rb").read()).body  # doctest: +SKIP
    """
    header, body_at = frame.decode(data, len(data))
    return Unframed(header, data[body_at:], header.standing.body if header.standing is not None else "")


def main() -> int:
    try:
        found = unframe(sys.stdin.buffer.read())
    except frame.BadFrame as bad:
        print(f"not a frame: {bad}", file=sys.stderr)
        return 2
    if found.header.tombstone:
        print("the object was removed", file=sys.stderr)
        return 1
    if found.body_key:
        print(f"the body is under the key {found.body_key}", file=sys.stderr)
        return 3
    sys.stdout.buffer.write(found.body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
