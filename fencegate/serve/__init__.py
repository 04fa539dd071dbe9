"""`fencegate serve`: the lock service and the gateway in one process."""

from fencegate.serve.server import serve

__all__ = ["serve"]
