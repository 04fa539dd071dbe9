"""Accounts behind a fence, with Starlette and an async session: `uvicorn fencegate_demo.services.starlette_app:app`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fencegate.middleware import FenceMiddleware, Guarded, current_fence

engine = create_async_engine(os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///accounts.db"))


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    balance: Mapped[int]


async def read(request: Request) -> Response:
    async with AsyncSession(engine) as session:
        account = await session.get(Account, request.path_params["account_id"])
        return Response(status_code=404) if account is None else JSONResponse({"balance": account.balance})


async def write(request: Request) -> Response:
    account_id, body = request.path_params["account_id"], await request.json()
    # A token that is older than one that was here before raises StaleToken, which is answered as 412. From here to the
    # commit at the end of the block no newer holder can come between.
    async with AsyncSession(engine) as session, current_fence().enforce(session):
        await session.merge(Account(id=account_id, balance=int(body["balance"])))
    return Response(status_code=204)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


app = Starlette(
    routes=[
        Route("/accounts/{account_id:int}", read, methods=["GET"]),
        Route("/accounts/{account_id:int}", write, methods=["PUT"]),
    ],
    # Which lock guards what, for all handlers in one place. `:int` refuses 007, which is account 7 to the handler.
    middleware=[Middleware(FenceMiddleware, rules=[Guarded("/accounts/{account_id:int}", "acct:{account_id}")])],
    lifespan=lifespan,
)
