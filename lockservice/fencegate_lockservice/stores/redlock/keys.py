"""The names of Redis keys on every node of a redlock store."""

from fencegate.core.model import LOCKS


class Keys:
    """`prefix` keeps several stores on the same nodes apart."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.node = f"{prefix}fencegate:node"
        """What the node says of itself."""
        self.index = f"{prefix}fencegate:index"
        """The names of all registers, in order."""
        self.changes = f"{prefix}fencegate:changes"

    def register(self, name: str) -> str:
        if name.startswith(LOCKS):
            return f"{self._prefix}lock:{name.removeprefix(LOCKS)}"
        return f"{self._prefix}entry:{name}"

    @property
    def looked_at(self) -> list[str]:
        """What rights.lua tries: every kind of name. No register has an empty one."""
        return [self.node, self.index, self.changes, self.register(LOCKS), self.register("")]
