"""A session as its holder sees it: one keep-alive for any number of leases, which live and die with it."""

from fencegate.client.attempt import repeated, worth_repeating
from fencegate.client.grant import margin_us, revocation, unreadable
from fencegate.client.lease import LeaseCore
from fencegate.client.life import Life
from fencegate.client.patience import within
from fencegate.client.renewal import look_at_deadline
from fencegate.client.transport import Json, Transport
from fencegate.clock import Clock


class Opened:
    """What opening or renewing a session brought, with the deadline on this process's own clock."""

    def __init__(self, reply: Json, started_us: int) -> None:
        try:
            self.session_id = str(reply["sessionId"])
            self.ttl_ms = int(reply["ttlMillis"])
            self.owner_id = str(reply.get("ownerId", ""))
            remaining_ms = int(reply["remainingMillis"])
            self.started_us = started_us
            self.until_us = started_us + remaining_ms * 1000 - margin_us(self.ttl_ms)
            server_now_ms = int(reply["expiresAt"]) - remaining_ms
            self.revoked = {
                (str(told["lockKey"]), str(told["fencingToken"])): revocation(
                    told, started_us, int(told["takenAt"]) - server_now_ms, self.ttl_ms
                )
                for told in reply.get("revoked") or ()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable("a session", error) from error


class Opening:
    """Opens a session. One whose answer got lost holds nothing, and runs out by itself; so it may be asked again."""

    doubtful = False
    wait_until_us = 0

    def __init__(self, owner_id: str, ttl_ms: int, clock: Clock, timeout_s: float) -> None:
        self._body = {"ownerId": owner_id, "ttlMillis": ttl_ms}
        self._clock = clock
        self._timeout_s = timeout_s
        self._opened: Opened | None = None

    async def run(self, transport: Transport) -> Opened:
        clock = self._clock
        until_us = clock.monotonic_us() + self._timeout_s * 1e6

        async def send() -> Opened:
            started_us = clock.monotonic_us()
            reply = await within(transport.open_session(self._body), self._timeout_s)
            return Opened({**self._body, **reply}, started_us)

        self._opened = await repeated(send, lambda error: worth_repeating(error) and clock.monotonic_us() < until_us)
        return self._opened

    async def undo(self, transport: Transport) -> None:
        if self._opened is not None:
            await within(transport.end_session(self._opened.session_id), self._timeout_s)


class SessionCore(Life):
    """What both faces of a session share."""

    def __init__(self, opened: Opened, clock: Clock) -> None:
        self._session_id = opened.session_id
        self._ttl_ms = opened.ttl_ms
        self._owner_id = opened.owner_id
        super().__init__(clock, opened.started_us, opened.until_us)

    def __repr__(self) -> str:  # without the session's id, which is a secret
        return f"<{type(self).__name__} of {self._owner_id!r} {self.state.value}>"

    @property
    def session_id(self) -> str:
        """The secret by which locks are acquired under this session."""
        return self._session_id

    @property
    def owner_id(self) -> str:
        return self._owner_id

    @property
    def ttl(self) -> float:
        """Seconds that each renewal brings, to the session and all its leases."""
        return self._ttl_ms / 1000

    def _describe(self) -> str:
        return f"the session of {self._owner_id!r}"

    async def _send_renewal(self, transport: Transport) -> None:
        started_us = self._clock.monotonic_us()
        body = {"ownerId": self._owner_id, "ttlMillis": self._ttl_ms}
        reply = await transport.renew_session(self._session_id, body)
        again = Opened({**body, **reply}, started_us)
        if self._live_on(again.started_us, again.until_us) and again.revoked:
            self._pass_on(again)

    def _pass_on(self, told: Opened) -> None:
        for lease in self._leases():
            assert isinstance(lease, LeaseCore), "only leases are leaves"
            revoked = told.revoked.get((lease.lock_key, lease.token.wire))
            if revoked is not None and lease.revoked is None:
                lease._revoke(revoked)
                look_at_deadline(lease)

    async def _send_release(self, transport: Transport) -> None:
        await transport.end_session(self._session_id)
