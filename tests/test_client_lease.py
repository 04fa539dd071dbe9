"""When a lease may be believed: its deadline, by the holder's own clock, and what can and can't move it."""

import json

import pytest
from msgspec.structs import replace

from fencegate import LeaseState, LockLost, Token
from fencegate.client.attachment import export_grant, import_grant
from fencegate.client.duration import ttl_millis, wait_seconds
from fencegate.client.grant import Grant, granted, margin_us, renewed
from fencegate.client.lease import LeaseCore
from fencegate.clock import ManualClock
from fencegate.core.errors import InvalidInput, OutcomeUnknown

TTL_MS = 10_000
REPLY = {
    "lockKey": "a",
    "lockToken": "r.secret",
    "fencingToken": "34",
    "sequencer": None,
    "ownerId": "me",
    "expiresAt": 0,
    "remainingMillis": TTL_MS,
    "ttlMillis": TTL_MS,
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def grant_at(started_us: int, remaining_ms: int = TTL_MS) -> Grant:
    return granted("a", {}, {**REPLY, "remainingMillis": remaining_ms}, started_us)


def test_the_deadline_counts_from_before_the_request_left_not_from_its_answer(clock: ManualClock) -> None:
    started_us = clock.monotonic_us()
    clock.advance(4)  # the answer was slow
    lease = LeaseCore(grant_at(started_us), clock)
    assert lease.remaining == pytest.approx(10 - 4 - 0.1)


def test_remaining_millis_counts_and_the_ttl_does_not(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock.monotonic_us(), remaining_ms=3_000), clock)
    clock.advance(2.95)
    assert not lease.held


@pytest.mark.parametrize(("ttl_ms", "margin_ms"), [(1_000, 50), (5_000, 50), (30_000, 300), (3_600_000, 36_000)])
def test_the_margin_is_one_percent_and_at_least_50_ms(ttl_ms: int, margin_ms: int) -> None:
    assert margin_us(ttl_ms) == margin_ms * 1000


def test_at_the_deadline_the_lease_is_lost_though_nobody_said_so(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock.monotonic_us()), clock)
    heard: list[str] = []
    lease._when_lost(lambda: heard.append("lost"))
    clock.advance(9.899)
    lease.ensure_held()
    clock.advance(0.001)
    with pytest.raises(LockLost):
        lease.ensure_held()
    with pytest.raises(LockLost):
        lease.headers()
    with pytest.raises(LockLost):
        lease.export()
    assert lease.state is LeaseState.LOST
    assert lease.remaining == 0.0
    assert heard == ["lost"]


def test_a_renewal_lengthens_and_ends_a_suspension(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock.monotonic_us()), clock)
    clock.advance(5)
    lease._suspend()
    assert lease.state.value == "suspended"
    lease.ensure_held()
    lease._extend(grant_at(clock.monotonic_us()))
    assert lease.state.value == "held"
    assert lease.remaining == pytest.approx(9.9)


def test_a_renewal_never_shortens(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock.monotonic_us()), clock)
    lease._extend(grant_at(clock.monotonic_us(), remaining_ms=1_000))
    assert lease.remaining == pytest.approx(9.9)


def test_a_renewal_that_succeeds_after_the_deadline_brings_nothing_back(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock.monotonic_us()), clock)
    clock.advance(9.8)
    started_us = clock.monotonic_us()  # left in time,
    clock.advance(1)  # but its answer comes late, and nobody has looked at the lease meanwhile
    lease._extend(grant_at(started_us))
    assert lease.state is LeaseState.LOST


def test_a_lost_lease_stays_lost(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock.monotonic_us()), clock)
    lease._lose("another holds it")
    lease._extend(grant_at(clock.monotonic_us()))
    lease._suspend()
    assert not lease._give_up()
    with pytest.raises(LockLost, match="another holds it"):
        lease.ensure_held()


def test_a_released_lease_is_over_but_not_lost(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock.monotonic_us()), clock)
    heard: list[str] = []
    lease._when_lost(lambda: heard.append("lost"))
    assert lease._give_up()
    clock.advance(60)
    assert lease.state is LeaseState.RELEASED
    with pytest.raises(LockLost, match="released"):
        lease.ensure_held()
    assert heard == []


def test_whoever_asks_after_the_loss_hears_of_it_at_once(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock.monotonic_us()), clock)
    lease._lose("gone")
    heard: list[str] = []
    lease._when_lost(lambda: heard.append("lost"))
    assert heard == ["lost"]


def test_a_renewal_of_another_token_is_not_ours(clock: ManualClock) -> None:
    with pytest.raises(LockLost):
        renewed(grant_at(0), {"fencingToken": "35", "remainingMillis": 1000}, 0)


@pytest.mark.parametrize("broken", [{"fencingToken": "0"}, {"remainingMillis": None}, {"fencingToken": "1_0"}])
def test_an_answer_that_cannot_be_read_is_unknown_and_not_a_grant(broken: dict[str, object]) -> None:
    with pytest.raises(OutcomeUnknown):
        granted("a", {}, {**REPLY, **broken}, 0)


@pytest.mark.parametrize(
    ("lock_key", "sent"), [("job:rebuild", "job:rebuild"), ("a b/c", "a b/c"), ("prüfung", None), ("鍵", None)]
)
def test_headers_name_the_lock_only_where_a_header_can(clock: ManualClock, lock_key: str, sent: str | None) -> None:
    lease = LeaseCore(replace(grant_at(clock.monotonic_us()), lock_key=lock_key), clock)
    expected = {"Fencing-Token": "34"} | ({"Fencing-Lock": sent} if sent else {})
    assert lease.headers() == expected


def test_headers_carry_the_sequencer_where_there_is_one(clock: ManualClock) -> None:
    lease = LeaseCore(replace(grant_at(clock.monotonic_us()), sequencer="signed"), clock)
    assert lease.headers()["Fencing-Token"] == "signed"


def test_the_secret_is_not_in_the_repr(clock: ManualClock) -> None:
    assert "secret" not in repr(LeaseCore(grant_at(clock.monotonic_us()), clock))


def test_an_exported_lease_is_worth_nothing_until_it_was_renewed(clock: ManualClock) -> None:
    grant = import_grant(export_grant(grant_at(clock.monotonic_us())))
    assert (grant.token, grant.lock_token, grant.owner_id) == (Token(34), "r.secret", "me")
    assert not LeaseCore(grant, clock).held


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, "{}", "[]", "null", '{"form": "other"}', '{"form": "fencegate-lease-1"}']
)
def test_what_no_lease_exported_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="exported"):
        import_grant(text)


EXPORTED = export_grant(granted("a", {}, REPLY, 0))


@pytest.mark.parametrize("field", json.loads(EXPORTED))
@pytest.mark.parametrize("value", [-1.5, float("inf"), True, [1], {}, "\ud800"], ids=repr)
def test_an_exported_lease_with_a_field_that_is_of_another_kind_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match="exported"):
        import_grant(json.dumps(json.loads(EXPORTED) | {field: value}))


@pytest.mark.parametrize("field", ["form", "lockKey", "lockToken", "ownerId", "fencingToken", "ttlMillis"])
def test_an_exported_lease_without_one_of_its_fields_is_refused(field: str) -> None:
    rest = {name: value for name, value in json.loads(EXPORTED).items() if name != field}
    with pytest.raises(InvalidInput, match="exported"):
        import_grant(json.dumps(rest))


def test_an_exported_lease_that_was_cut_off_is_refused() -> None:
    for length in range(len(EXPORTED)):
        with pytest.raises(InvalidInput, match="exported"):
            import_grant(EXPORTED[:length])


@pytest.mark.parametrize("ttl", [0, 0.999, -1, 3601, float("nan"), float("inf"), True, "10", None])
def test_a_ttl_out_of_bounds_is_refused_by_name(ttl: object) -> None:
    with pytest.raises(InvalidInput, match="ttl"):
        ttl_millis(ttl)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", [-1, float("nan"), True, "10"])
def test_a_wait_that_is_no_duration_is_refused_by_name(wait: object) -> None:
    with pytest.raises(InvalidInput, match="wait"):
        wait_seconds(wait)  # type: ignore[arg-type]
