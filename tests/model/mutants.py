"""The bugs that can be switched on in the model, what each breaks, and the sizes at which the model is checked."""

from typing import NamedTuple

SMALL = (
    {"ROUNDS": 1, "CHANGES": 2, "FAULTS": 3},
    {"ROUNDS": 2, "CHANGES": 1, "FAULTS": 1},
)
LARGE = (
    {"ROUNDS": 2, "CHANGES": 2, "FAULTS": 1},
    {"ROUNDS": 2, "CHANGES": 1, "FAULTS": 2},
)
_USUAL = {"ROUNDS": 1, "CHANGES": 2, "FAULTS": 2}


class Mutant(NamedTuple):
    """`breaks` are the properties of which one is found broken first."""

    what: str
    breaks: tuple[str, ...]
    sizes: dict[str, int] = _USUAL


MUTANTS = {
    "CHECK_THEN_WRITE": Mutant("the gateway compares, and writes a moment later", ("I2", "I3", "I4")),
    "MARK_IN_MEMORY": Mutant("the mark is in the memory of the gateways, and a crash forgets it", ("I2", "I3", "I4")),
    "MARK_PER_GATEWAY": Mutant("each gateway has a mark of its own", ("I2", "I3", "I4")),
    "HARD_DELETE": Mutant("a delete takes the mark with it", ("I2", "I3", "I4")),
    "OFF_BY_ONE": Mutant("the last but one is let in", ("I2", "I3", "I4")),
    "EQUAL_IS_REFUSED": Mutant("a holder's second request is refused as stale", ("I3",)),
    "NO_CLAIM_ON_READ": Mutant("a read does not show its token: the first-write hole", ("I3", "I4")),
    "CLAIM_NOT_DURABLE": Mutant("a restart of the resource forgets claims, not writes", ("I3", "I4")),
    "LOST_ANSWER_TOLD_AS_REFUSED": Mutant("the gateway tells an unknown outcome as a refusal", ("I4",)),
    "SENT_AGAIN": Mutant("the gateway sends again what may have landed", ("I4",)),
    "TOKEN_FROM_THE_COUNTER": Mutant("a holder sends the lock's last token, not its grant's", ("I4",)),
    "TOKEN_WITHOUT_CLOCK": Mutant("tokens are a counter, and a lossy failover sets it back", ("I1",)),
    "COMMIT_WITHOUT_COMPARE": Mutant("the store writes whatever it is told", ("I1",)),
    "COMMIT_AT_ANY_TIME": Mutant("a commit may land however long ago it was decided", ("I1", "I4")),
    "VERSION_REPEATS": Mutant(
        "a record that was cleaned up and made again counts its versions anew",
        ("I1",),
        {"ROUNDS": 2, "CHANGES": 0, "FAULTS": 1},
    ),
    "CLEANUP_WITHOUT_FLOOR": Mutant("a record is cleaned up, and nothing remembers its last token", ("I1",)),
    "FLOOR_NOT_COMPARED": Mutant("a create that slept through a cleanup does not look at the floor", ("I1",)),
    "UNKNOWN_TAKEN_FOR_DONE": Mutant("a commit without an answer is taken for one that landed", ("I1",)),
    "UNKNOWN_TAKEN_FOR_NOT_DONE": Mutant("a commit without an answer is told as 'not acquired'", ("I4",)),
}

ASSUMPTIONS = {
    "CLOCK_STANDS_STILL": Mutant("a failover that loses commits while the store's clock does not move on", ("I1",)),
}
"""What the promises rest on: without it, and with no bug in the protocol, they don't hold."""
