"""What a line of a scenario asks of the state machine.


    now 1s | now 1s..3s         sets the time; two values: what is known of it
    limits waiters=2 …          waiters, polls, reentrancy, offer, retention, suspect, idle
    acquire OWNER [wait] [reentrant] [as=REQUEST] [named] [body=X] [ttl=30s] [on=REPLICA] [poll=ATTEMPT] [wait-for=30s]
            [shared] [hierarchical] [limit=2] [priority=5] [delay=2s] [max-hold=6s] [session=S]
    take-up REQUEST    leave REQUEST [poll=ATTEMPT] [keep=15s]    renew REQUEST [owner=X] [ttl=30s]
    confirm REQUEST token=… [highest=…] [blocked]    look-below OWNER: what a hierarchical lock would find
    release REQUEST [owner=X]    force-release REASON [grace=5s]    expire    forget
    acquire-all OWNER KEY KEY:shared … [wait] and the rest as for acquire
    hand-over-all, take-up-all, leave-all, renew-all, release-all REQUEST KEY KEY …
    open S [owner=A] [ttl=30s]    renew-session S    end-session S    expire-session S    forget-session S
    drop S REQUEST              what becomes of a lock of the session, or of a place, when it ended
    lose [ENTRY]                the store forgets everything, or this entry
    wakes                       when time alone next changes something
    show                        the entries as they are

A request is called like its owner unless `as` says otherwise. A token is the microsecond of its grant, or one more than
the last. Every command may have `key=`. What should be asked next is told as `next`, and is not done by itself.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Command,
    Confirm,
    Drop,
    EndSession,
    Expire,
    ExpireSession,
    ForceRelease,
    Forget,
    ForgetSession,
    HandOverAll,
    Leave,
    LeaveAll,
    OpenSession,
    Release,
    ReleaseAll,
    Renew,
    RenewAll,
    RenewSession,
    TakeUp,
    TakeUpAll,
)
from fencegate.core.model import PLAIN, Claimant, Terms

if TYPE_CHECKING:
    from collections.abc import Callable


def us(text: str) -> int:
    return round(float(text.removesuffix("s")) * 1_000_000)


def parse(verb: str, plain: list[str], options: dict[str, str]) -> Command:
    key = options.get("key", "k")
    name, *rest = plain or [""]
    poll = options.get("poll", "p1")
    owner, lock_token = options.get("owner"), f"{name}.secret"
    ttl_us = us(options["ttl"]) if "ttl" in options else None
    keep_us = us(options.get("keep", "0s"))
    keys = tuple(rest)
    commands: dict[str, Callable[[], Command]] = {
        "acquire": lambda: acquire(plain, options),
        "take-up": lambda: TakeUp(key, name),
        "confirm": lambda: Confirm(
            key, name, int(options["token"]), int(options.get("highest", "0")), "blocked" in rest
        ),
        "leave": lambda: Leave(key, name, poll, keep_us),
        "renew": lambda: Renew(key, lock_token, owner, ttl_us),
        "release": lambda: Release(key, lock_token, owner),
        "force-release": lambda: ForceRelease(key, " ".join(plain), us(options.get("grace", "0s"))),
        "drop": lambda: Drop(key, name, rest[0]),
        "expire": lambda: Expire(key),
        "forget": lambda: Forget(key),
        "acquire-all": lambda: acquire_all(plain, options),
        "hand-over-all": lambda: HandOverAll(keys, name),
        "take-up-all": lambda: TakeUpAll(keys, name),
        "leave-all": lambda: LeaveAll(tuple(Leave(one, name, poll, keep_us) for one in keys)),
        "renew-all": lambda: RenewAll(tuple(Renew(one, lock_token, owner, ttl_us) for one in keys)),
        "release-all": lambda: ReleaseAll(tuple(Release(one, lock_token, owner) for one in keys)),
        "open": lambda: OpenSession(name, owner or "A", ttl_us or 30_000_000),
        "renew-session": lambda: RenewSession(name, owner, ttl_us),
        "end-session": lambda: EndSession(name),
        "expire-session": lambda: ExpireSession(name),
        "forget-session": lambda: ForgetSession(name),
    }
    return commands[verb]()


def acquire(plain: list[str], options: dict[str, str]) -> Acquire:
    owner, *flags = plain
    request = options.get("as", owner)
    terms = Terms(
        shared="shared" in flags,
        limit=int(options.get("limit", "0")),
        priority=int(options.get("priority", "0")),
        lock_delay_us=us(options.get("delay", "0s")),
        max_hold_us=us(options.get("max-hold", "0s")),
        session=options.get("session", ""),
        hierarchical="hierarchical" in flags,
    )
    ttl_us, body = us(options.get("ttl", "30s")), options.get("body", "")
    who = Claimant(request, f"{request}.secret", owner, ttl_us, body, None, terms if terms != PLAIN else None)
    return Acquire(
        options.get("key", "k"),
        who,
        options.get("on", "r1"),
        options.get("poll", "p1"),
        "wait" in flags,
        "named" in flags,
        "reentrant" in flags,
        us(options.get("wait-for", "0s")),
    )


def acquire_all(plain: list[str], options: dict[str, str]) -> AcquireAll:
    owner, *words = plain
    flags = [word for word in words if word in ("wait", "named")]
    wanted = sorted(word for word in words if word not in flags)
    one = acquire([owner, *flags], options)
    group = tuple(word.partition(":")[0] for word in wanted)
    return AcquireAll(
        tuple(
            replace(one, lock_key=key, who=replace(one.who, special=replace(one.who.terms, shared=shared, group=group)))
            for key, shared in ((word.partition(":")[0], word.endswith(":shared")) for word in wanted)
        )
    )
