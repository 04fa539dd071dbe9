"""A thin layer over ASGI for the hot calls: a request, a reply, and problem documents for errors."""

from fencegate.web.asgi import Handler, Reply, Request, ThinApp
from fencegate.web.json import dumps, loads
from fencegate.web.problems import problem

__all__ = ["Handler", "Reply", "Request", "ThinApp", "dumps", "loads", "problem"]
