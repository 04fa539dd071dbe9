"""Holder A wakes up when its successor has read and not yet written: the resource has not heard of the successor yet.

The check is on in both arms. What they differ by is the claim: B raises the fence when it gets the lock, or does not.
"""

from fencegate_demo.cast import Cast

SUMMARY = "the successor has read and not yet written when the paused holder wakes up; the arms differ by the claim"


async def play(cast: Cast) -> None:
    a, b = cast.a, cast.b
    await a.do("acquire", "read", "update")
    await cast.pause(a.process)
    a.begin("update", "update", "update")  # what it was about to do when it was stopped
    await b.do("acquire", "read")
    await cast.outlast_lease()
    cast.resume(a.process)
    await a.answers(3)
    await b.do("update", "update", "update", "release")  # made of what it read before A woke up
