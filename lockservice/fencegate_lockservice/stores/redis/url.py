"""The URL of a Redis store."""

from fencegate import redis_url
from fencegate.core.errors import UnsafeConfiguration
from fencegate.redis_url import Address

__all__ = ["Address", "parse"]


def parse(url: str) -> Address:
    """redis://[[USER]:PASSWORD@]HOST[:PORT][/DB][?prefix=P], or rediss:// for TLS."""
    try:
        return redis_url.parse(url)
    except ValueError as error:
        raise UnsafeConfiguration(f"the URL of the Redis store can't be used: {error}") from None
