"""A's gateway is stopped at its worst line: it has A's write, has found nothing wrong with it, and has not done it."""

from fencegate_demo.cast import Cast

SUMMARY = "the gateway itself is stopped with a holder's write in its hands; the successor writes through another"
FAILPOINT = "resource.write=stop@2"  # A's first write goes through


async def play(cast: Cast) -> None:
    a, b = cast.a, cast.b
    await a.do("acquire", "read", "update")
    a.begin("update", "update", "update")
    await cast.pauses_itself(cast.gateway)
    await b.do("acquire", "read", "update", "update", "update")
    await cast.outlast_lease()
    cast.resume(cast.gateway)
    await a.answers(3)
    await b.do("release")
