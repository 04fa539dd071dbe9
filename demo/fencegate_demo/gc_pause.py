"""Holder A is stopped past its lease, between its read and its write, as by a long garbage collection."""

from fencegate_demo.cast import Cast

SUMMARY = "a holder is stopped past its lease; its successor writes; the holder wakes up and writes too"


async def play(cast: Cast) -> None:
    a, b = cast.a, cast.b
    await a.do("acquire", "read", "update")
    await cast.pause(a.process)
    a.begin("update", "update", "update")  # what it was about to do when it was stopped
    await b.do("acquire", "read", "update", "update", "update")
    await cast.outlast_lease()
    cast.resume(a.process)
    await a.answers(3)
    await b.do("release")
