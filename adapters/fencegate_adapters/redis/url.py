"""The URL of a Redis resource: beside where its keys are, how many replicas are to have a write."""

from dataclasses import dataclass
from typing import Any

from fencegate import redis_url
from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters.redis.names import OURS

MAX_REPLICAS = 9


@dataclass(frozen=True, slots=True)
class Address:
    """See the head of this file."""

    at: redis_url.Address
    replicas: int
    """How many replicas must have a write before it is acknowledged."""

    def __str__(self) -> str:
        return str(self.at)

    @property
    def secrets(self) -> dict[str, Any]:
        """User, password and files of certificates, as redis-py names them."""
        given = {"username": self.at.username, "password": self.at.password, **self.at.files}
        return {name: text for name, text in given.items() if text}


def parse(resource: str, url: str) -> Address:
    """redis://[[USER]:PASSWORD@]HOST[:PORT][/DB][?prefix=P&replicas=N], or rediss:// for TLS."""
    try:
        at = redis_url.parse(url, further=["replicas"])
        if at.prefix.startswith(OURS):
            raise ValueError(f"the prefix {OURS!r} belongs to Fencegate itself")
        return Address(at, _replicas(at.options.get("replicas", "0")))
    except ValueError as error:
        raise UnsafeConfiguration(f"resource {resource!r}: its url can't be used: {error}") from None


def _replicas(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= MAX_REPLICAS):
        raise ValueError(f"replicas must be a whole number from 0 to {MAX_REPLICAS}")
    return int(text)
