"""Connections to one Redis server. A command is sent once: what became of it after that is told, never tried out."""

from collections.abc import Sequence
from typing import Any, Literal

from redis.asyncio import BlockingConnectionPool, Connection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.redis.replies import (
    REFUSALS,
    failure_of,
    is_stale,
    not_told,
    queued,
    too_few,
    unanswered,
    unreachable,
)
from fencegate_adapters.redis.script import Script
from fencegate_adapters.redis.url import Address

CONNECTIONS = 16
WAIT_SHARE = 0.5
Outcome = Literal["not-written", "unknown"]
Argument = str | bytes | int | float


class Link:
    """A pool of connections, on which no command is ever repeated. (A client of redis-py repeats by itself.)"""

    def __init__(self, pool: ConnectionPool, server: str, *, replicas: int = 0, replicas_wait_ms: int = 1000) -> None:
        self._pool = pool
        self._server = server
        self._replicas = replicas
        self._replicas_wait_ms = replicas_wait_ms

    async def close(self) -> None:
        await self._pool.disconnect()

    async def ask(self, *command: Argument) -> Any:
        """A command that writes nothing."""
        answer = await self._send(command, "not-written")
        if isinstance(answer, REFUSALS):
            raise failure_of(answer, self._server, "not-written")
        return answer

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], outcome: Outcome
    ) -> list[Any]:
        """A script and its answer. `outcome` is what is known of it when it was sent and no answer came."""
        tail = (len(keys), *keys, *arguments)
        answer = await self._send(("EVALSHA", script.sha, *tail), outcome)
        if isinstance(answer, NoScriptError):  # it did nothing
            answer = await self._send(("EVAL", script.text, *tail), outcome)
        if isinstance(answer, REFUSALS):
            raise failure_of(answer, self._server, outcome)
        if not isinstance(answer, list):
            raise queued(self._server)
        return answer

    async def _send(self, command: tuple[Argument, ...], outcome: Outcome) -> Any:
        try:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]  # it has half of its types
        except REFUSALS as refusal:
            return refusal
        except (RedisError, OSError) as error:
            raise unreachable(self._server, error) from error
        try:
            await connection.send_command(*command)
            answer = await connection.read_response()
            if outcome == "unknown" and self._replicas and not is_stale(answer):
                await self._await_replicas(connection)
            return answer
        except REFUSALS as refusal:
            return refusal
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise unanswered(self._server, error, outcome) from error
        except ResourceUnavailable:
            raise
        except BaseException:  # cancelled: an answer that comes now would be taken for another's
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self._pool.release(connection)

    async def _await_replicas(self, connection: Connection) -> None:
        """The write is there all the same, but without them a failover may lose it."""
        try:
            await connection.send_command("WAIT", self._replicas, self._replicas_wait_ms)
            reached = await connection.read_response()
        except REFUSALS as refusal:  # of this question, not of the write
            raise not_told(self._server, refusal) from refusal
        if reached < self._replicas:
            raise too_few(self._server, reached, self._replicas)


def link_to(address: Address, wait_s: float) -> Link:
    """A pool of our own."""
    at = address.at
    pool = BlockingConnectionPool(
        connection_class=SSLConnection if at.tls else Connection,
        max_connections=CONNECTIONS,
        timeout=wait_s,
        host=at.host,
        port=at.port,
        db=at.db,
        protocol=2,
        client_name="fencegate",
        retry=Retry(NoBackoff(), 0),
        socket_timeout=wait_s,
        socket_connect_timeout=wait_s,
        **address.secrets,
    )
    wait_ms = int(wait_s * 1000 * WAIT_SHARE)
    return Link(pool, str(address), replicas=address.replicas, replicas_wait_ms=wait_ms)
