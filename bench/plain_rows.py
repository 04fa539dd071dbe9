"""`python -m bench.plain_rows URL PORT`: a service as teams write it, without fences: one update, one transaction, one
request. On PostgreSQL by psycopg's own asyncio connections, on SQLite by `sqlite3` in the threads that FastAPI has."""

import asyncio
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import uvicorn
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

CONNECTIONS = 32


class Account(BaseModel):
    balance: int


def on_postgresql(url: str) -> FastAPI:
    free: asyncio.Queue[psycopg.AsyncConnection[tuple[object, ...]]] = asyncio.Queue()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        for _ in range(CONNECTIONS):
            free.put_nowait(await psycopg.AsyncConnection.connect(url))
        yield

    app = FastAPI(lifespan=lifespan)

    @app.patch("/accounts/{number}", status_code=204)
    async def change(number: int, account: Account) -> Response:
        connection = await free.get()
        try:
            async with connection.transaction():
                done = await connection.execute(
                    "UPDATE accounts SET balance = %s WHERE id = %s", (account.balance, number)
                )
        finally:
            free.put_nowait(connection)
        if done.rowcount == 0:
            raise HTTPException(404)
        return Response(status_code=204)

    return app


def on_sqlite(path: str) -> FastAPI:
    app = FastAPI()
    of_thread = threading.local()
    writing = threading.Lock()  # SQLite has one writer: left to its polling, some would starve

    def connected() -> sqlite3.Connection:
        if not hasattr(of_thread, "connection"):
            of_thread.connection = sqlite3.connect(path, timeout=30, isolation_level=None)
            for pragma in ("journal_mode=WAL", "synchronous=FULL"):
                of_thread.connection.execute(f"PRAGMA {pragma}")
        connection: sqlite3.Connection = of_thread.connection
        return connection

    @app.patch("/accounts/{number}", status_code=204)
    def change(number: int, account: Account) -> Response:
        connection = connected()
        with writing:
            connection.execute("BEGIN IMMEDIATE")
            done = connection.execute("UPDATE accounts SET balance = ? WHERE id = ?", (account.balance, number))
            connection.execute("COMMIT")
        if done.rowcount == 0:
            raise HTTPException(404)
        return Response(status_code=204)

    return app


def main(url: str, port: int) -> None:
    app = on_sqlite(url.removeprefix("sqlite:///")) if url.startswith("sqlite:") else on_postgresql(url)

    @app.get("/readyz")
    def ready() -> str:
        return "ready"

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
