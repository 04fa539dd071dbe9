"""Fences inside a service of your own: the token of a request is checked in the transaction that does its work.

    app.add_middleware(FenceMiddleware)                       # FastAPI, Starlette; WsgiFenceMiddleware for the others

    with Session(engine) as session, require_fence(f"acct:{account_id}").enforce(session):
        session.get(Account, account_id).balance = body.balance

The middleware reads the token and answers refusals as the gateway does; `enforce` makes the database compare. With
FastAPI: `from fencegate.middleware.fastapi import required_fence`.
"""

from fencegate.middleware.asgi import FenceMiddleware
from fencegate.middleware.enforced import Enforced
from fencegate.middleware.fence import Fence
from fencegate.middleware.presented import NotEnforced, current_fence, require_fence, try_fence
from fencegate.middleware.rules import Guarded
from fencegate.middleware.wsgi import WsgiFenceMiddleware

__all__ = [
    "Enforced",
    "Fence",
    "FenceMiddleware",
    "Guarded",
    "NotEnforced",
    "WsgiFenceMiddleware",
    "current_fence",
    "require_fence",
    "try_fence",
]
