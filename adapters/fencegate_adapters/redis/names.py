"""What things are called in Redis: the user's keys by their own names, ours behind a prefix that is closed to users."""

from fencegate.core.errors import InvalidInput
from fencegate.core.names import check_path
from fencegate.core.ports import Key

OURS = "fencegate:"
BORN = f"{OURS}born"
FLOOR = f"{OURS}floor"
ABOUT = f"{OURS}about:"


def fence_name(lock_key: str, mode: str = "enforce") -> str:
    """A fence is named by the lock key alone: all resources of a database share it."""
    return f"{OURS}{'fence' if mode == 'enforce' else 'shadow'}:{lock_key}"


def record_name(resource: str) -> str:
    return f"{OURS}resource:{resource}"


def index_name(resource: str) -> str:
    return f"{OURS}index:{resource}"


def name_of(key: Key) -> str:
    """The name of a value inside its resource; InvalidInput when it can't be one."""
    return check_path("key", "/".join(key))


def value_name(prefix: str, name: str) -> str:
    """The Redis key of a value. Ours are refused: whoever writes a fence by hand goes round it."""
    redis_key = prefix + name
    if redis_key.startswith(OURS):
        raise InvalidInput("key", f"what begins with {OURS!r} belongs to Fencegate itself")
    return redis_key
