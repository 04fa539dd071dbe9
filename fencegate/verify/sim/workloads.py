"""What callers do under locks: one short function for each workload, and the table of them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fencegate.verify.sim.caller import Caller, Held, Work

if TYPE_CHECKING:
    from fencegate.verify.sim.resource import Updates


async def appending(caller: Caller, number: int) -> None:
    """Read a list, add to it, write it back; sometimes twice under one token."""
    key = caller.chance.choice(caller.keys)
    await caller.under([key], caller.locks.hold(key, **caller.terms()), lambda held: _append(caller, key, held, number))


async def _append(caller: Caller, key: str, held: Held, number: int) -> None:
    token = held.tokens[key]
    seen = await caller.read(key, token)
    for part in range(caller.chance.choice((1, 1, 2))):
        await caller.think(held)
        seen = await caller.append(key, token, seen, f"{caller.name}.{number}.{part}")


async def overwriting(caller: Caller, number: int) -> None:
    """A register: written without a look at what is there, or only read."""
    key = caller.chance.choice(caller.keys)

    async def body(held: Held) -> None:
        token = held.tokens[key]
        for part in range(caller.chance.choice((1, 2, 3))):
            await caller.think(held)
            if caller.chance.random() < 0.4:
                await caller.read(key, token)
            else:
                update = f"{caller.name}.{number}.{part}"
                await caller.put(key, token, update, (update,))

    await caller.under([key], caller.locks.hold(key, **caller.terms()), body)


async def counting(caller: Caller, number: int) -> None:
    """A counter: read a number, write the next one."""
    key = caller.chance.choice(caller.keys)

    async def body(held: Held) -> None:
        token = held.tokens[key]
        seen = await caller.read(key, token)
        await caller.think(held)
        await caller.put(key, token, f"{caller.name}.{number}", (str(int(seen[0] if seen else 0) + 1),))

    await caller.under([key], caller.locks.hold(key, **caller.terms()), body)


async def collecting(caller: Caller, number: int) -> None:
    """A set: add a member, take one out, or delete the whole of it."""
    key = caller.chance.choice(caller.keys)

    async def body(held: Held) -> None:
        token, update = held.tokens[key], f"{caller.name}.{number}"
        seen: Updates = await caller.read(key, token)
        await caller.think(held)
        chance = caller.chance.random()
        if chance < 0.35:
            await caller.delete(key, token, update)
        elif chance < 0.5 and seen:
            out = caller.chance.choice(seen)
            await caller.put(key, token, update, tuple(member for member in seen if member != out))
        else:
            await caller.put(key, token, update, tuple(sorted({*seen, update})))

    await caller.under([key], caller.locks.hold(key, **caller.terms()), body)


async def several(caller: Caller, number: int) -> None:
    """Several locks at once, and a write to all that they protect in one step; others take one of them."""
    if caller.chance.random() < 0.4:
        await appending(caller, number)
        return
    keys = caller.chance.sample(caller.keys, len(caller.keys))

    async def body(held: Held) -> None:
        seen = {key: await caller.read(key, held.tokens[key]) for key in keys}
        await caller.think(held)
        await caller.append_all(seen, held.tokens, f"{caller.name}.{number}")

    await caller.under(keys, caller.locks.hold_all(keys, **caller.terms()), body)


async def leading(caller: Caller, number: int) -> None:
    """Stand for election, and write as the leader, until the term is over or there is nothing more to do."""
    key = caller.keys[0]
    ttl, wait = caller.chance.choice((1.0, 2.0)), caller.chance.choice((4, 8))
    await caller.under(
        [key], caller.locks.lead(key, ttl=ttl, wait=wait), lambda held: _append(caller, key, held, number)
    )


async def sharing(caller: Caller, number: int) -> None:
    """Readers together, writers alone."""
    if caller.chance.random() < 0.4:
        await appending(caller, number)
        return
    key = caller.chance.choice(caller.keys)

    async def body(held: Held) -> None:
        for _ in range(2):
            await caller.read(key, held.tokens[key])
            await caller.think(held)

    await caller.under([key], caller.locks.hold(key, shared=True, **caller.terms()), body, shared=True)


async def in_session(caller: Caller, number: int) -> None:
    """Two holds, one after the other, kept alive by one session."""
    wait = caller.chance.choice((0, 2, 8))
    async with caller.locks.session(ttl=caller.chance.choice((1.0, 3.0))) as session:
        for part in range(2):
            key = caller.chance.choice(caller.keys)
            numbered = 2 * number + part

            async def body(held: Held, key: str = key, numbered: int = numbered) -> None:
                await _append(caller, key, held, numbered)

            await caller.under([key], session.hold(key, wait=wait), body)


WORKLOADS: Mapping[str, Work] = {
    "list": appending,
    "register": overwriting,
    "counter": counting,
    "set": collecting,
    "several": several,
    "leader": leading,
    "shared": sharing,
    "session": in_session,
}
