"""What strings and hashes have in common: the record, the fence, and how an answer of a script is read."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import (
    InvalidInput,
    NotFound,
    PreconditionFailed,
    ResourceUnavailable,
    StaleToken,
    TooLarge,
    UnsafeConfiguration,
)
from fencegate.core.names import Guard, check_lock_key
from fencegate.core.ports import Conditions, Guarantee, Seen, ShadowRefusal
from fencegate.core.token import Token
from fencegate.failpoint import reach
from fencegate.redis_acl import is_not_allowed
from fencegate_adapters.redis import names, script, server
from fencegate_adapters.redis.link import Argument, Outcome, link_to
from fencegate_adapters.redis.record import Record
from fencegate_adapters.redis.rights import check_rights
from fencegate_adapters.redis.script import Script
from fencegate_adapters.redis.url import parse

Mode = Literal["enforce", "shadow"]
WAIT_MS = 5000
_HEX = frozenset("0123456789abcdef")


class Passed(NamedTuple):
    """What a script says when the token was admitted: the mark, and what it found."""

    mark: int
    shadow: ShadowRefusal | None
    found: list[Any]

    def seen(self, etag: str | None = None, *, created: bool = False) -> Seen:
        return Seen(self.mark, etag, created, self.shadow)


class RedisResource:
    """Keys of one Redis server, under one record. The kinds add `read` and `write`."""

    form: str
    """What the values are; recorded, for a change of it would leave marks that mean nothing."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        guard_template: str = "{resource}:{key}",
        mode: Mode = "enforce",
        wait_ms: int = WAIT_MS,
        clock: Clock = SYSTEM,
    ) -> None:
        self._address = parse(name, url)
        self._prefix = self._address.at.prefix
        self._record = Record(name, guard_template, f"{self.form} {self._prefix}", mode)
        self._link = link_to(self._address, wait_ms / 1000)
        self._clock = clock
        self._born = ""
        self._closed = False
        self.guarantee = Guarantee("atomic", f"{server.STEP}How long they are kept is known when it was reached.")
        Guard(guard_template, name, ("key",) if self.form == "hashes" else ())  # refuses one that can't be filled in

    # --- opening and closing -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Look at the server, and make the record or check it."""
        try:
            facts = await self._facts()
            server.check(str(self._address), facts.info)
            await self._check_rights()
            await self._check_apart()
        except ResourceUnavailable as error:
            if is_not_allowed(error.detail):  # no outage: it stays until somebody changes it
                raise UnsafeConfiguration(f"resource {self._record.name!r}: {error.detail}") from None
            raise
        keys = [names.record_name(self._record.name)]
        born = self._clock.random_id(8)
        answer = await self._link.run(script.ENTER, keys, [*self._record[1:], born], "not-written")
        self._born = self._judged(answer)[0].decode()
        self.guarantee = Guarantee("atomic", server.durability(facts, self._address.replicas))

    async def raise_floor(self, value: int) -> None:
        floor = Token(value)
        server.check(str(self._address), (await self._facts()).info)
        keys = [names.record_name(self._record.name), names.BORN, names.FLOOR]
        await self._link.run(script.FLOOR, keys, [*self._record[1:], floor.wire], "unknown")

    async def close(self) -> None:
        self._closed = True
        await self._link.close()

    async def _facts(self) -> server.Facts:
        info = server.fields(await self._link.ask("INFO"))
        try:
            told = await self._link.ask("CONFIG", "GET", "*appendfsync*")
        except ResourceUnavailable:  # managed services refuse it
            return server.Facts(info, None)
        settings = dict(zip(told[::2], told[1::2], strict=True))
        fsync = settings.get(b"appendfsync")
        always = settings.get(b"no-appendfsync-on-rewrite") != b"yes"
        return server.Facts(info, fsync.decode() if fsync is not None else None, always)

    async def _check_rights(self) -> None:
        ours = (names.record_name(self._record.name), names.fence_name("", self._record.mode))
        said = (self.form, *ours, self._prefix, names.ABOUT, names.index_name(self._record.name))
        failed = await self._link.run(script.RIGHTS, (), said, "not-written")
        check_rights(failed, str(self._address), self._address.at.username, [self._prefix])
        if self._address.replicas:
            await self._link.ask("WAIT", 0, 1)

    async def _check_apart(self) -> None:
        """A resource over the keys of a lock store could overwrite locks."""
        if await self._link.ask("EXISTS", f"{self._prefix}fencegate-reign"):
            raise UnsafeConfiguration(
                f"resource {self._record.name!r}: {self._address} keeps locks under the prefix {self._prefix!r}; give "
                "this resource a ?prefix= or a database of its own"
            )

    # --- the resource contract ---------------------------------------------------------------------------------------

    async def claim(self, fence: str, token: int) -> Seen:
        return (await self._pass(script.CLAIM, fence, token)).seen()

    async def mark(self, fence: str) -> int:
        return (await self._pass(script.CLAIM, fence, None)).mark

    # --- for the kinds -----------------------------------------------------------------------------------------------

    async def _pass(
        self,
        wanted: Script,
        fence: str,
        token: int | None,
        keys: tuple[str, ...] = (),
        arguments: tuple[Argument, ...] = (),
        failpoint: str = "",
    ) -> Passed:
        """Run a script that begins with the stale check; a token of None is for a plain read."""
        check_lock_key(fence)
        text = "" if token is None else Token(token).wire
        ours = [names.record_name(self._record.name), names.fence_name(fence, self._record.mode)]
        said = [*self._record[1:], self._born, text, *arguments]
        if failpoint:
            reach(failpoint)
        answer = await self._run(wanted, [*ours, *keys], said, "not-written" if token is None else "unknown")
        highest, shadow, *found = self._judged(answer, token)
        refusal = ShadowRefusal(token or 0, int(shadow)) if shadow else None
        return Passed(int(highest), refusal, found)

    async def _run(
        self, wanted: Script, keys: Sequence[str], arguments: Sequence[Argument], outcome: Outcome
    ) -> list[Any]:
        if self._closed:
            raise ResourceUnavailable(f"resource {self._record.name!r} is closed")
        return await self._link.run(wanted, keys, arguments, outcome)

    def _judged(self, answer: list[Any], token: int | None = None) -> list[Any]:
        """What a script found; raises what it refused."""
        verdict, *rest = answer
        match verdict:
            case b"ok":
                return rest
            case b"stale":
                raise StaleToken(token or 0, int(rest[0]))
            case b"lost":
                raise self._record.lost()
            case b"changed":
                guard, form, mode = (part.decode(errors="replace") for part in rest)
                raise self._record.changed(guard, form, mode)
            case b"precondition":
                raise PreconditionFailed("your own If-Match or If-None-Match did not hold: read again, then decide")
            case b"missing":
                _, *names_it = rest  # only a batch has to say which one
                about = {"key": names_it[0].decode().removeprefix(self._prefix)} if names_it else {}
                raise NotFound("there is nothing under this key", **about)
            case b"kind":
                kind = rest[1].decode()
                raise InvalidInput("key", f"Redis holds a {kind} there, and this resource is of {self.form}")
            case b"empty":
                raise InvalidInput("row", "a Redis hash has at least one field; DELETE removes it as a whole")
            case b"large":
                raise TooLarge("the row is over the limit")
            case _:
                raise ResourceUnavailable("the fence is damaged: its mark is not a number, so nothing is accepted")


def spelled(conditions: Conditions) -> tuple[str, str]:
    """Conditions as the scripts read them. What can't be an ETag of ours can't match either, and `-` matches none."""

    def tags(given: tuple[str, ...] | None) -> str:
        if given is None:
            return ""
        return ",".join(tag for tag in given if tag == "*" or (len(tag) == 40 and _HEX.issuperset(tag))) or "-"

    return tags(conditions.if_match), tags(conditions.if_none_match)
