"""I6: once nothing goes wrong any more, whoever waits gets the lock within one TTL and a little, and in turn."""

from collections.abc import Iterator

from fencegate.verify.history import History, Hold, Violation

FREE_FOR_US = 7_000_000
"""The longest TTL, an offer that nobody took, and a little."""
CAME_LATER_US = 500_000
"""Whoever came so much later stands behind: two who come at once may find their places in either order."""
SERVED_WITHIN_US = 250_000
"""From when a lock comes free until the next has it, where nothing goes wrong. In 360 such runs it took 42 ms at most:
who is not woken hears of it by its next poll, or when the offer lapses, which is later."""


def waited_too_long(history: History) -> Iterator[Violation]:
    for who in history.unfinished:
        yield Violation("I6", f"{who} was still waiting long after the last fault")
    if history.calm_from_us is not None:
        yield from _free_all_the_while(history, history.calm_from_us)
    if history.in_turn:
        yield from _overtaken(history)
        yield from _not_woken(history)


def _free_all_the_while(history: History, calm_from_us: int) -> Iterator[Violation]:
    """Somebody waited while nobody held the lock."""
    waits = [(waiter.client, waiter.lock_key, waiter.asked_us, waiter.ended_us) for waiter in history.in_vain]
    waits += [(hold.client, hold.lock_key, hold.asked_us, hold.granted_us) for hold in history.holds]
    for client, lock_key, asked_us, ended_us in waits:
        free_from_us = max(asked_us, calm_from_us)
        if ended_us - free_from_us < FREE_FOR_US:
            continue
        of_key = [hold for hold in history.holds if hold.lock_key == lock_key]
        for hold in sorted(of_key, key=lambda hold: hold.granted_us):
            if hold.granted_us - free_from_us >= FREE_FOR_US or hold.granted_us > ended_us:
                break
            free_from_us = max(free_from_us, hold.believed_until_us)
        if ended_us - free_from_us >= FREE_FOR_US:
            seconds = (ended_us - free_from_us) / 1e6
            yield Violation("I6", f"{lock_key}: {client} waited for {seconds:.1f} s while nobody held it")


def _overtaken(history: History) -> Iterator[Violation]:
    """Somebody waited, and the lock went to one who had come later. (Whoever waited in vain left a moment before it was
    told so; and of readers who are let in together the last to come may be the first to hear of it.)"""
    waits = [(one.client, one.lock_key, one.asked_us, one.ended_us - SERVED_WITHIN_US, 0) for one in history.in_vain]
    waits += [
        (hold.client, hold.lock_key, hold.asked_us, hold.granted_us, hold.token if hold.shared else 0)
        for hold in history.holds
    ]
    for client, lock_key, asked_us, until_us, group in waits:
        of_key = [hold for hold in history.holds if hold.lock_key == lock_key and hold.token != group]
        passed = [hold for hold in of_key if _passes(hold, asked_us, until_us)]
        if passed:
            told = ", ".join(f"{hold.client} ({hold.token})" for hold in passed)
            yield Violation("I6", f"{lock_key}: {client} waited, and {told} came later and had it first")


def _not_woken(history: History) -> Iterator[Violation]:
    """Somebody waited, and heard late that the lock was free. (Who asks for several may be kept by another of them, and
    others behind it: then nothing can be said.)"""
    if len({(hold.client, hold.asked_us) for hold in history.holds}) < len(history.holds):
        return
    free_from_us: dict[str, int] = {}
    for hold in sorted(history.holds, key=lambda hold: hold.granted_us):
        since_us = max(hold.asked_us, free_from_us.get(hold.lock_key, 0))
        if hold.granted_us - since_us > SERVED_WITHIN_US:
            seconds = (hold.granted_us - since_us) / 1e6
            yield Violation("I6", f"{hold.lock_key}: {hold.client} was served {seconds:.2f} s after it came free")
        free_from_us[hold.lock_key] = max(free_from_us.get(hold.lock_key, 0), hold.believed_until_us)


def _passes(hold: Hold, asked_us: int, until_us: int) -> bool:
    return hold.asked_us > asked_us + CAME_LATER_US and hold.granted_us < until_us
