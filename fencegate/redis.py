"""Fencing of your own keys in Redis: `from fencegate.redis import FencedRedis`."""

try:
    from fencegate_adapters.redis.fenced import AsyncFencedRedis, BlockingFencedRedis, FencedRedis
    from fencegate_adapters.redis.lease import Lease
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "redis":
        raise
    raise ImportError("fencegate.redis needs redis-py: pip install 'fencegate[redis]'", name="redis") from None

__all__ = ["AsyncFencedRedis", "BlockingFencedRedis", "FencedRedis", "Lease"]
