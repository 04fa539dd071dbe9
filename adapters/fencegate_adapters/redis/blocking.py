"""The same as `link.py`, on a client of redis-py that blocks."""

from collections.abc import Sequence
from typing import Any

from redis import ConnectionPool
from redis.exceptions import NoScriptError, RedisError

from fencegate_adapters.redis.link import Argument, Outcome
from fencegate_adapters.redis.replies import REFUSALS, failure_of, queued, unanswered, unreachable
from fencegate_adapters.redis.script import Script


class BlockingLink:
    """A pool of connections, on which no command is ever repeated."""

    def __init__(self, pool: ConnectionPool, server: str) -> None:
        self._pool = pool
        self._server = server

    def ask(self, *command: Argument) -> Any:
        """A command that writes nothing."""
        return self._answered(self._send(command, "not-written"), "not-written")

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> list[Any]:
        """A script and its answer."""
        tail = (len(keys), *keys, *arguments)
        answer = self._send(("EVALSHA", script.sha, *tail), "unknown")
        if isinstance(answer, NoScriptError):  # it did nothing
            answer = self._send(("EVAL", script.text, *tail), "unknown")
        answer = self._answered(answer, "unknown")
        if not isinstance(answer, list):
            raise queued(self._server)
        return answer

    def _answered(self, answer: Any, outcome: Outcome) -> Any:
        if isinstance(answer, REFUSALS):
            raise failure_of(answer, self._server, outcome)
        return answer

    def _send(self, command: tuple[Argument, ...], outcome: Outcome) -> Any:
        try:
            connection: Any = self._pool.get_connection()  # redis-py has half of its types
        except REFUSALS as refusal:
            return refusal
        except (RedisError, OSError) as error:
            raise unreachable(self._server, error) from error
        try:
            connection.send_command(*command)
            return connection.read_response()
        except REFUSALS as refusal:
            return refusal
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise unanswered(self._server, error, outcome) from error
        except BaseException:  # interrupted: an answer that comes now would be taken for another's
            connection.disconnect()
            raise
        finally:
            self._pool.release(connection)
