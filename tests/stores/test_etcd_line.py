"""What goes over the line to etcd: header blocks, and frames that make no sense."""

import asyncio
import random

import pytest

from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.grpc import Connection, Cut, NotSent, Status
from fencegate_lockservice.stores.etcd.headers import BadHeaders, decode


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ("88", {b":status": b"200"}),
        ("48826402", {b":status": b"302"}),  # RFC 7541, C.6.1: in Huffman code
        ("20400a637573746f6d2d6b65790d637573746f6d2d686561646572", {b"custom-key": b"custom-header"}),  # C.2.1
        ("008825a849e95ba97d7f8925a849e95bb8e8b4bf", {b"custom-key": b"custom-value"}),  # C.4.3
        ("0001617f00" + "62" * 127, {b"a": b"b" * 127}),
    ],
)
def test_headers_are_read_as_the_standard_says(block: str, found: dict[bytes, bytes]) -> None:
    assert decode(bytes.fromhex(block)) == found


@pytest.mark.parametrize("block", ["be", "7f9a0a8825", "40", "000161", "00016105", "ffffffffffffff01"])
def test_headers_that_make_no_sense_are_refused(block: str) -> None:
    with pytest.raises(BadHeaders):
        decode(bytes.fromhex(block))


@pytest.mark.parametrize("said_no", [b"\x0a\x00", b"\x0a\x00\x10\x00"], ids=["left out", "spelled out"])
def test_a_transaction_that_did_not_happen_is_never_taken_for_one_that_did(said_no: bytes) -> None:
    assert proto.succeeded(said_no) is False
    assert proto.verdicts(said_no) == (False, [])


def test_an_answer_that_says_nothing_is_no_verdict() -> None:
    """Else the group is sent again, and told of conflicts with itself."""
    for read in (proto.succeeded, proto.verdicts):
        with pytest.raises(proto.Malformed):
            read(b"")


class NoWire(asyncio.Transport):
    """Nothing of what is sent arrives."""

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


PAYLOADS = (
    b"",
    b"\x88",
    b"\0\0\0\0\x02ab",  # a message
    b"\0\x0bgrpc-status\x010",
    b"\0\x0bgrpc-status\x0214",
    b"\0\x04\0\0\xff\xff",  # a setting
    b"\0\0\0\0",
)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_comes_over_the_line_every_call_ends_and_nothing_is_thrown(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(20):
        connection = Connection(lambda _: None)
        connection.connection_made(NoWire())
        calls = [connection.stream(b"head", b"x" * size) for size in (1, 10, 200_000)]
        for _ in range(dice.randrange(1, 12)):
            payload = dice.choice((*PAYLOADS, dice.randbytes(dice.randrange(40))))
            kind, flags, stream = dice.choice((0, 1, 3, 4, 6, 7, 8, 9, 12)), dice.randrange(64), dice.randrange(8)
            frame = len(payload).to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, stream)) + payload
            middle = dice.randrange(len(frame))
            for part in (frame[:middle], frame[middle:]):
                connection.get_buffer(-1)[: len(part)] = part
                connection.buffer_updated(len(part))
        connection.connection_lost(None)
        for call in calls:
            assert call.answer.done()
            assert isinstance(call.answer.exception(), Cut | NotSent | Status | None)
            assert call.told is not None
            assert (await call.told.take())[-1] is None


async def test_a_line_whose_numbers_are_used_up_makes_room_for_another() -> None:
    connection = Connection(lambda _: None)
    connection.connection_made(NoWire())
    connection._next_stream = (1 << 31) - 3
    last = connection.stream(b"head", b"x")
    with pytest.raises(NotSent):
        connection.stream(b"head", b"x")
    assert not connection.alive
    assert not last.answer.done()  # what is under way goes on
    connection.connection_lost(None)
