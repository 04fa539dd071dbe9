"""Commits that go together to Redis, as commit.lua is given them: the names of keys, what to do with each in words, and
values, each behind its version and a line feed."""

from collections.abc import Sequence

from fencegate.core.model import DONE, LOCKS
from fencegate.core.ports import Change
from fencegate_lockservice.stores.redis import log as redis_log
from fencegate_lockservice.stores.redis.line import pack

MOST_KEYS = 1000
"""So many go together, and a commit may be about twice as many: a script can't name many more in one call."""

UNLISTED = DONE
"""What became of a request is asked for by its name: no scan has to find it, and most of what is kept is that."""

Commit = tuple[Sequence[Change], Sequence[tuple[str, bytes]], int]
"""Changes, log lines, and not_after in microseconds."""

_COMMON = (LOCKS, DONE)


class Together:
    """Packs them."""

    def __init__(self, sha: str, prefix: str, writer: str) -> None:
        self._sha = sha
        self._prefix = prefix
        self._writer = writer

    def pack(self, commits: Sequence[Commit]) -> bytes:
        """ValueError when a name is no text, or there are too many."""
        prefix = self._prefix
        names: list[str] = []
        words: list[str] = []
        values: list[bytes] = []
        for changes, log, not_after_us in commits:
            words.append(f"{not_after_us} {len(changes)} ")
            values.append(redis_log.encode(log))
            for key, expected, version, value, compare_only, keep_until_us in changes:
                names.append(prefix + key.replace("/", ":", 1) if key.startswith(_COMMON) else self._name(key))
                if compare_only or value is None:
                    words.append(f"{expected or '-'} {'=' if compare_only else '-'} ")
                    continue
                values.append(b"\n".join((version.encode(), value)))
                if keep_until_us is None:
                    words.append(f"{expected or '-'} + ")
                else:
                    unlisted = "~" if key.startswith(UNLISTED) else ""
                    words.append(f"{expected or '-'} {unlisted}{-(-keep_until_us // 1000)} ")
        if len(names) > 2 * MOST_KEYS:
            raise ValueError(f"{len(names)} keys are too many for one commit")
        return pack(("EVALSHA", self._sha, len(names), *names, self._writer, "".join(words), *values))

    def _name(self, key: str) -> str:
        kind, slash, rest = key.partition("/")
        return f"{self._prefix}{kind}:{rest}" if slash and kind and ":" not in kind else f"{self._prefix}:{key}"
