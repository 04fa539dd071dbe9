"""Redis keys as protected resources: strings and hashes that anybody can read with any client of Redis.

Check and write are one Lua script, so Redis itself makes them one step, and no pause can come between.
"""

from fencegate_adapters.redis.hashes import RedisHashes
from fencegate_adapters.redis.strings import RedisStrings

__all__ = ["RedisHashes", "RedisStrings"]
