"""The history as it lies in the store: one entry for each hold that is over, and one that says how far it was written.

The entries of a lock are in order, newest first: by token, then by when the hold was granted, then by where in the
change log it ended, which tells apart those that share both.
"""

import re

import msgspec

from fencegate.core.model import Ending, Event

HISTORY = "history/"
POSITION = "history-position"

_TOKENS = 2**63 - 1
_TIMES = 2**56 - 1
_REVISIONS = 2**48 - 1
_LINES = 2**24 - 1
_PLACE = re.compile(r"[0-9a-f]{48}")

_ENDINGS = frozenset(ending.value for ending in Ending)


class Row(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One hold: by whom, from when to when, and how it ended (None: it is held still)."""

    owner_id: str
    token: int
    acquired_us: int
    ended_us: int | None = None
    ending: str | None = None
    reason: str | None = None
    shared: bool = False
    slot: int | None = None


class Gap(msgspec.Struct, frozen=True, gc=False):
    """What ended in this time may be missing: the change log was gone before it was read."""

    from_us: int
    to_us: int


class Position(msgspec.Struct, frozen=True, gc=False):
    """Up to which revision of the change log the history is written, when that was, and where it has gaps."""

    revision: int = 0
    at_us: int = 0
    gaps: tuple[Gap, ...] = ()


encode = msgspec.json.Encoder().encode
decode_row = msgspec.json.Decoder(Row).decode
decode_position = msgspec.json.Decoder(Position).decode


def row_of(event: Event) -> Row | None:
    """What the history keeps of a line of the change log; None when no hold ended there."""
    if event.kind not in _ENDINGS:
        return None
    return Row(
        event.owner_id,
        event.token,
        event.since_us,
        event.at_us,
        event.kind,
        event.reason,
        event.shared,
        event.slot,
    )


def rows_of(lock_key: str) -> str:
    """What the entries of a lock begin with. No lock key holds a tab, so they are no other lock's."""
    return f"{HISTORY}{lock_key}\t"


def ended_place(row: Row, revision: int, line: int) -> str:
    return _place(row, _REVISIONS - revision, _LINES - line)


def held_place(row: Row, number: int) -> str:
    """Before all that are over and were granted together with it; `number` tells apart those that are held still."""
    return _place(row, 0, number)


def _place(row: Row, revision: int, line: int) -> str:
    return f"{_TOKENS - row.token:016x}{_TIMES - row.acquired_us:014x}{revision:012x}{line:06x}"


def is_place(text: str) -> bool:
    return _PLACE.fullmatch(text) is not None


def acquired_us(place: str) -> int:
    """When the hold at this place was granted."""
    return _TIMES - int(place[16:30], 16)
