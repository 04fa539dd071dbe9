"""An HTTP service behind the gateway: which of its routes write, and under which lock."""

import json
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Upstream
from fencegate.gateway.kinds.common import Duration, Kind, ResourceSettings, register
from fencegate.gateway.service_routes import MAX_ROUTES, READS, WRITES, Route, Routes

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_ANSWER_BYTES = 1024 * 1024 * 1024
MAX_CONNECTIONS = 1000


class RouteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[resources.NAME.routes]]`: the first whose path fits decides. A method that it has neither among those
    that write nor among those that read is refused."""

    path: str
    """`/accounts/{id}/*`: a hole is one segment, a `*` at the end whatever follows."""
    methods: tuple[str, ...] = WRITES
    """Those that write, and need a token."""
    reads: tuple[str, ...] | None = None
    """Those that read; GET, HEAD and OPTIONS unless they are said to write."""
    guard: str | None = None
    """Which lock protects what the path names: `acct:{id}`."""

    @property
    def reading(self) -> tuple[str, ...]:
        return tuple(method for method in READS if method not in self.methods) if self.reads is None else self.reads


class UpstreamSettings(ResourceSettings, frozen=True, kw_only=True):
    """A service that is reached by HTTP."""

    kind: ClassVar[Kind] = "upstream"

    routes: tuple[RouteSettings, ...] = ()
    """Without any, the whole path is the key, and GET, HEAD and OPTIONS read."""
    fence: str | None = None
    """Where the marks are kept, and the writes under way: `sqlite:///…`, `postgresql://…` or `mysql://…`."""
    upstream_checks: bool = False
    """Whether the service itself runs our middleware: only then is the check part of its write."""
    upstream_claims: bool = False
    """Whether it also answers `POST {path}/claim` by raising its own fence: then claims are passed on to it."""
    connect_timeout: Duration = "5s"
    idle_timeout: Duration = "30s"
    """The longest pause between two pieces of a body. (`timeout` is for the first byte of the answer.)"""
    total_timeout: Duration = "60s"
    """From the beginning of a request to the end of its answer; then it is cut."""
    drain_timeout: Duration = "10s"
    """How long a newer holder's write waits for an older one that is under way, before it is refused."""
    max_answer_bytes: int = MAX_ANSWER_BYTES
    max_connections: int = 100
    ca_file: str | None = None
    """The certificates that an https service is known by, instead of the system's."""

    def check(self) -> None:
        from fencegate_adapters.http.address import Address
        from fencegate_adapters.http.fence.databases import database

        try:
            Address.parse(self.name, self.url)
        except UnsafeConfiguration as error:
            raise self.wrong(self._bare(error), "url") from None
        if not self.fence:
            raise self.wrong(
                "marks must outlive this process: name a file, fence = 'sqlite:////var/lib/fencegate/api.db'", "fence"
            )
        try:
            database(self.fence, SYSTEM)
        except UnsafeConfiguration as error:
            raise self.wrong(error.detail, "fence") from None
        if self.upstream_claims and not self.upstream_checks:
            raise self.wrong(
                "upstream_claims is for a service that compares tokens: upstream_checks", "upstream_claims"
            )
        if self.max_answer_bytes < 1:
            raise self.wrong("max_answer_bytes must be at least 1", "max_answer_bytes")
        if not 1 <= self.max_connections <= MAX_CONNECTIONS:
            raise self.wrong(f"max_connections must be 1 to {MAX_CONNECTIONS}", "max_connections")
        if len(self.routes) > MAX_ROUTES:
            raise self.wrong(f"there can be {MAX_ROUTES} routes at most", "routes")
        for field in ("connect_timeout", "idle_timeout", "total_timeout", "drain_timeout"):
            self.duration_s(field, getattr(self, field))
        for index, route in enumerate(self.routes):
            try:
                self._route(route)
            except UnsafeConfiguration as error:
                raise self.wrong(self._bare(error), "routes", index) from None

    def _bare(self, error: UnsafeConfiguration) -> str:
        return error.detail.removeprefix(f"resource {self.name!r}: ")

    def _route(self, route: RouteSettings) -> Route:
        return Route.parse(route.path, self._guard_of(route), self.name, route.reading, route.methods)

    def _guard_of(self, route: RouteSettings) -> str:
        return self.guard if route.guard is None else route.guard

    @property
    def guards(self) -> tuple[str, ...]:
        """Those of its rules, each once."""
        return tuple(dict.fromkeys(map(self._guard_of, self.routes))) or (self.guard,)

    def unreached(self) -> list[tuple[str, str]]:
        """The rules that no path comes to, each with one before it that has them all."""
        parsed = [(route.path, self._route(route)) for route in self.routes]
        firsts = (
            (path, next((before for before, first in parsed[:index] if first.covers(route)), None))
            for index, (path, route) in enumerate(parsed)
        )
        return [(path, before) for path, before in firsts if before is not None]

    def service_routes(self) -> Routes:
        every = RouteSettings(path="/*")
        return Routes([self._route(route) for route in self.routes or (every,)])

    @property
    def max_body_bytes(self) -> int:
        return self.max_bytes or MAX_BODY_BYTES

    async def reach(self) -> None:
        """ResourceUnavailable when nobody takes a connection there; nothing is asked."""
        from fencegate_adapters.http.address import Address
        from fencegate_adapters.http.connections import reach

        within_s = self.duration_s("connect_timeout", self.connect_timeout)
        await reach(Address.parse(self.name, self.url), self.ca_file, within_s)

    def build(self) -> Upstream:
        # Only a resource of this kind should need the packages that its adapter needs.
        with self.needs("postgres" if (self.fence or "").startswith("postgres") else "mysql"):
            from fencegate_adapters.http import Limits
            from fencegate_adapters.http import Upstream as HttpUpstream

            return HttpUpstream(
                self.name,
                self.url,
                fence=self.fence or "",
                guard_template=self.guard,
                form=json.dumps([[route.path, self._guard_of(route)] for route in self.routes]),
                mode=self.mode,
                upstream_checks=self.upstream_checks,
                upstream_claims=self.upstream_claims,
                ca_file=self.ca_file,
                limits=Limits(
                    connect_s=self.duration_s("connect_timeout", self.connect_timeout),
                    first_byte_s=self.timeout_s,
                    idle_s=self.duration_s("idle_timeout", self.idle_timeout),
                    total_s=self.duration_s("total_timeout", self.total_timeout),
                    drain_s=self.duration_s("drain_timeout", self.drain_timeout),
                    answer_bytes=self.max_answer_bytes,
                    connections=self.max_connections,
                ),
            )


def _upstream(_name: str, _table: Mapping[str, object]) -> type[ResourceSettings]:
    return UpstreamSettings


register({"http": "http://host:port/base", "https": "https://host/base"}, _upstream)
