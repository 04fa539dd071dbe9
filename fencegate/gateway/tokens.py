"""The fencing token of a request to the gateway, by the rules that it shares with the middleware."""

from fencegate.core.token import Token
from fencegate.web import tokens
from fencegate.web.asgi import Request
from fencegate.web.tokens import check_ceiling

__all__ = ["check_ceiling", "check_lock", "given_token"]


def given_token(request: Request) -> Token | None:
    """The token in `Fencing-Token`; None when there is none."""
    values = request.headers(b"fencing-token")
    return tokens.read_token(values, request.headers(b"connection")) if values else None


def check_lock(request: Request, fence: str) -> None:
    """A lock that the caller names beside its token must be the one that guards the key."""
    tokens.check_lock(request.headers(b"fencing-lock"), fence)
