"""The demo's own service behind the gateway: `python -m fencegate_demo.service DATABASE [PORT]`. It says its port when
ready.

Below `/checked` it runs the middleware, and the check commits with its own work; below `/unchecked` it does neither.
"""

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fencegate.middleware import FenceMiddleware, Guarded, current_fence


class Base(DeclarativeBase):
    pass


class Value(Base):
    __tablename__ = "kept"  # "values" is a word of SQL
    name: Mapped[str] = mapped_column(primary_key=True)
    body: Mapped[str]


def service(database: str, port: int) -> Starlette:
    engine = create_engine(database)

    def read(request: Request) -> Response:
        with Session(engine) as session:
            value = session.get(Value, _name(request))
        return Response(status_code=404) if value is None else Response(value.body, media_type="application/json")

    async def write(request: Request) -> Response:
        value = Value(name=_name(request), body=(await request.body()).decode())
        if request.url.path.startswith("/checked/"):
            with Session(engine) as session, current_fence().enforce(session):
                session.merge(value)
        else:
            with Session(engine) as session:
                session.merge(value)
                session.commit()
        return Response(status_code=204)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        Base.metadata.create_all(engine)
        print(port, flush=True)
        yield
        engine.dispose()

    rule = Guarded("/checked/{corner}/{name}", "{corner}:{name}")
    path = "/{arm}/{corner}/{name}"
    return Starlette(
        routes=[Route(path, read, methods=["GET"]), Route(path, write, methods=["PUT"])],
        middleware=[Middleware(FenceMiddleware, rules=[rule])],
        lifespan=lifespan,
    )


def _name(request: Request) -> str:
    return f"{request.path_params['corner']}/{request.path_params['name']}"


def main() -> None:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0))
        listening.listen()  # before the port is told: whoever comes at once waits
        app = service(sys.argv[1], listening.getsockname()[1])
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
