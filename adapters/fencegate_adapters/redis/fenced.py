"""`FencedRedis`: a holder's own commands, each under the fence of its lock key, on a client of redis-py."""

import weakref
from collections.abc import Mapping
from typing import Any, TypeVar, overload

import redis
import redis.asyncio

from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters.redis import commands, script
from fencegate_adapters.redis.blocking import BlockingLink
from fencegate_adapters.redis.commands import Command, Name, Value
from fencegate_adapters.redis.lease import Lease
from fencegate_adapters.redis.link import Link
from fencegate_adapters.redis.passage import SERVER, Passage, check
from fencegate_adapters.redis.replies import cluster

T = TypeVar("T")
_checked: weakref.WeakSet[Any] = weakref.WeakSet()
"""Pools whose server was looked at."""


class FencedRedis:
    """Commands that Redis refuses once a newer holder was there.

    >>> async with locks.hold("job:prices") as lease:
    ...     fenced = FencedRedis(client, lease)         # of redis.asyncio; with redis.Redis the same without await
    ...     old = await fenced.get("prices")            # raises the fence: from here on older holders are refused
    ...     await fenced.set("prices", new)             # StaleToken when a newer one was here

    Check and command are one step in Redis. A command is sent once; when its answer is lost, ResourceUnavailable says
    that its outcome is unknown.
    """

    _pool: Any
    _passage: Passage

    @overload
    def __new__(cls, client: redis.asyncio.Redis, lease: Lease) -> "AsyncFencedRedis": ...
    @overload
    def __new__(cls, client: redis.Redis, lease: Lease) -> "BlockingFencedRedis": ...
    def __new__(cls, client: Any, lease: Lease) -> Any:
        made: FencedRedis
        if isinstance(client, redis.asyncio.Redis):
            made = object.__new__(AsyncFencedRedis)
        elif isinstance(client, redis.Redis):
            made = object.__new__(BlockingFencedRedis)
        elif isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
            raise cluster(SERVER)
        else:
            raise UnsafeConfiguration("FencedRedis takes a client of redis-py: redis.Redis or redis.asyncio.Redis")
        made._pool = client.connection_pool
        made._passage = Passage(lease)
        return made


class BlockingFencedRedis(FencedRedis):
    """The face for `redis.Redis`."""

    def _run(self, command: Command[T]) -> T:
        return command.read(self._pass(command))

    def _pass(self, command: Command[Any] | None) -> Any:
        link = BlockingLink(self._pool, SERVER)
        if self._pool not in _checked:
            check(link.ask("INFO"), link.run(script.RIGHTS, (), self._passage.tried), self._pool)
            _checked.add(self._pool)
        answer = link.run(script.COMMAND, self._passage.keys, self._passage.arguments(command))
        return self._passage.judged(answer)

    def claim(self) -> None:
        """Raise the fence, and do nothing else: older holders are refused from here on."""
        self._pass(None)

    def call(self, name: str, key: Name, *arguments: Value) -> Any:
        """Any other command that has one key; the answer as Redis gives it."""
        return self._run(commands.any_(name, key, *arguments))

    def get(self, key: Name) -> Any:
        return self._run(commands.get(key))

    def set(
        self,
        key: Name,
        value: Value,
        *,
        ex: int | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
        keepttl: bool = False,
    ) -> bool:
        """Whether it was set: `nx` and `xx` may prevent it."""
        return self._run(commands.set_(key, value, ex, px, nx, xx, keepttl))

    def delete(self, *keys: Name) -> int:
        """How many there were. The fence keeps its mark."""
        return self._run(commands.delete(keys))

    def incrby(self, key: Name, amount: int = 1) -> int:
        return self._run(commands.counting("INCRBY", key, amount))

    def expire(self, key: Name, seconds: int) -> bool:
        return self._run(commands.deciding("EXPIRE", key, seconds))

    def persist(self, key: Name) -> bool:
        return self._run(commands.deciding("PERSIST", key))

    def hget(self, key: Name, field: str) -> Any:
        return self._run(commands.any_("HGET", key, field))

    def hgetall(self, key: Name) -> dict[Any, Any]:
        return self._run(commands.hgetall(key))

    def hset(self, key: Name, mapping: Mapping[str, Value]) -> int:
        """How many fields are new."""
        return self._run(commands.hset(key, mapping))

    def hdel(self, key: Name, *fields: str) -> int:
        return self._run(commands.counting("HDEL", key, *fields))

    def hincrby(self, key: Name, field: str, amount: int = 1) -> int:
        return self._run(commands.counting("HINCRBY", key, field, amount))


class AsyncFencedRedis(FencedRedis):
    """The face for `redis.asyncio.Redis`."""

    async def _run(self, command: Command[T]) -> T:
        return command.read(await self._pass(command))

    async def _pass(self, command: Command[Any] | None) -> Any:
        link = Link(self._pool, SERVER)
        if self._pool not in _checked:
            failed = await link.run(script.RIGHTS, (), self._passage.tried, "not-written")
            check(await link.ask("INFO"), failed, self._pool)
            _checked.add(self._pool)
        answer = await link.run(script.COMMAND, self._passage.keys, self._passage.arguments(command), "unknown")
        return self._passage.judged(answer)

    async def claim(self) -> None:
        """Raise the fence, and do nothing else: older holders are refused from here on."""
        await self._pass(None)

    async def call(self, name: str, key: Name, *arguments: Value) -> Any:
        """Any other command that has one key; the answer as Redis gives it."""
        return await self._run(commands.any_(name, key, *arguments))

    async def get(self, key: Name) -> Any:
        return await self._run(commands.get(key))

    async def set(
        self,
        key: Name,
        value: Value,
        *,
        ex: int | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
        keepttl: bool = False,
    ) -> bool:
        """Whether it was set: `nx` and `xx` may prevent it."""
        return await self._run(commands.set_(key, value, ex, px, nx, xx, keepttl))

    async def delete(self, *keys: Name) -> int:
        """How many there were. The fence keeps its mark."""
        return await self._run(commands.delete(keys))

    async def incrby(self, key: Name, amount: int = 1) -> int:
        return await self._run(commands.counting("INCRBY", key, amount))

    async def expire(self, key: Name, seconds: int) -> bool:
        return await self._run(commands.deciding("EXPIRE", key, seconds))

    async def persist(self, key: Name) -> bool:
        return await self._run(commands.deciding("PERSIST", key))

    async def hget(self, key: Name, field: str) -> Any:
        return await self._run(commands.any_("HGET", key, field))

    async def hgetall(self, key: Name) -> dict[Any, Any]:
        return await self._run(commands.hgetall(key))

    async def hset(self, key: Name, mapping: Mapping[str, Value]) -> int:
        """How many fields are new."""
        return await self._run(commands.hset(key, mapping))

    async def hdel(self, key: Name, *fields: str) -> int:
        return await self._run(commands.counting("HDEL", key, *fields))

    async def hincrby(self, key: Name, field: str, amount: int = 1) -> int:
        return await self._run(commands.counting("HINCRBY", key, field, amount))
