"""The rules of the middleware, the same for ASGI and WSGI: which token passes, and what a handler can't get wrong."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID
from wsgiref.util import setup_testing_defaults

import httpx
import pytest
from fastapi import Depends, FastAPI
from flask import Flask
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fencegate.core.errors import InvalidInput, ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.middleware import (
    Fence,
    FenceMiddleware,
    Guarded,
    WsgiFenceMiddleware,
    current_fence,
    require_fence,
    try_fence,
)
from fencegate.middleware.fastapi import optional_fence, required_fence
from fencegate.sql import claimable

Work = Callable[[Fence], object]
Send = Callable[..., httpx.Response]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 30})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (note TEXT)"))
    yield engine
    engine.dispose()


def notes(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT note FROM notes")).scalars())


def add(session: Session | Connection, note: str = "n") -> None:
    session.execute(text("INSERT INTO notes VALUES (:note)"), {"note": note})


# --- one handler, behind either kind of middleware ---


def asgi(work: Work, **terms: Any) -> Send:
    async def handler(request: Request) -> Response:
        work(require_fence("job:x"))
        return Response(status_code=200)

    methods = ["GET", "PUT", "POST"]
    app = FenceMiddleware(Starlette(routes=[Route("/jobs/{name:path}", handler, methods=methods)]), **terms)
    return sender(httpx.ASGITransport(app, raise_app_exceptions=False))


def wsgi(work: Work, **terms: Any) -> Send:
    flask = Flask("test")

    @flask.route("/jobs/<path:name>", methods=["GET", "PUT", "POST"])
    def handler(name: str) -> str:
        work(require_fence("job:x"))
        return ""

    return wsgi_sender(WsgiFenceMiddleware(flask.wsgi_app, **terms))


def sender(transport: httpx.AsyncBaseTransport) -> Send:
    async def send(method: str, path: str, headers: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, headers=headers)

    def call(method: str = "PUT", path: str = "/jobs/x", headers: Any = None) -> httpx.Response:
        return asyncio.run(send(method, path, headers))

    return call


def wsgi_sender(app: Any) -> Send:
    def call(method: str = "PUT", path: str = "/jobs/x", headers: Any = None) -> httpx.Response:
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test") as client:
            return client.request(method, path, headers=headers)

    return call


both = pytest.mark.parametrize("behind", [asgi, wsgi])
TOKEN = {"Fencing-Token": "7"}


def nothing(fence: Fence) -> None:
    pass


@both
@pytest.mark.parametrize(
    "wrong",
    ["", "-1", "0", "+5", "5.0", "1e3", "0x10", "007", "1_000", "9223372036854775808", "9" * 5000, "7,8", "7;8"],
)
def test_what_is_no_token_is_refused_before_the_handlers_work(behind: Callable[..., Send], wrong: str) -> None:
    answer = behind(lambda fence: pytest.fail("it ran"))(headers={"Fencing-Token": wrong})
    assert (answer.status_code, answer.json()["error"]) == (400, "INVALID_TOKEN")


@both
def test_two_different_tokens_are_refused_and_the_same_one_twice_is_not(
    behind: Callable[..., Send], engine: Engine
) -> None:
    send = behind(lambda fence: fence.enforce(Session(engine)))
    two = [("Fencing-Token", "7"), ("Fencing-Token", "8")]
    joined = {"Fencing-Token": "7, 8"}
    assert send(headers=two if behind is asgi else joined).status_code == 400
    same = [("Fencing-Token", "7"), ("Fencing-Token", "7")]
    assert send(headers=same if behind is asgi else {"Fencing-Token": "7, 7"}).status_code == 200


@both
def test_a_token_that_ends_at_this_hop_is_refused(behind: Callable[..., Send]) -> None:
    answer = behind(nothing)(headers={**TOKEN, "Connection": "close, Fencing-Token"})
    assert answer.json()["error"] == "INVALID_TOKEN"


@both
def test_a_token_far_beyond_now_is_refused_where_we_are_the_issuer(behind: Callable[..., Send], engine: Engine) -> None:
    far = {"Fencing-Token": "4000000000000000000"}
    answer = behind(lambda fence: fence.enforce(Session(engine)), issuer=True)(headers=far)
    assert (answer.status_code, answer.json()["error"]) == (403, "TOKEN_NOT_FOR_THIS_KEY")


@both
def test_the_token_of_another_lock_is_refused(behind: Callable[..., Send]) -> None:
    answer = behind(nothing)(headers={**TOKEN, "Fencing-Lock": "job:y"})
    assert (answer.status_code, answer.json()["lockKey"]) == (403, "job:x")


@both
def test_a_stale_token_is_answered_by_the_contracts_412_and_nothing_is_written(
    behind: Callable[..., Send], engine: Engine
) -> None:
    claimable(engine).claim("job:x", 8)

    def work(fence: Fence) -> None:
        with Session(engine) as session, fence.enforce(session):
            add(session)

    answer = behind(work, resource="jobs-of-mine")(headers=TOKEN)
    assert answer.status_code == 412
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["fencing-token-highest"] == "8"
    told = answer.json()
    assert (told["error"], told["token"], told["highestToken"]) == ("STALE_TOKEN", "7", "8")
    assert (told["resource"], told["key"], told["lockKey"]) == ("jobs-of-mine", "jobs/x", "job:x")
    assert notes(engine) == []


@both
def test_an_accepted_write_is_there_and_tells_the_mark(behind: Callable[..., Send], engine: Engine) -> None:
    def work(fence: Fence) -> None:
        with Session(engine) as session, fence.enforce(session):
            add(session)

    answer = behind(work)(headers=TOKEN)
    assert (answer.status_code, answer.headers["fencing-token-highest"]) == (200, "7")
    assert notes(engine) == ["n"]


@both
def test_a_mark_that_was_not_committed_is_not_told_as_raised(behind: Callable[..., Send], engine: Engine) -> None:
    """Who claims on acquire goes by what is told: it would read what an older token may still change."""

    def work(fence: Fence) -> None:
        with Session(engine) as session:
            fence.enforce(session)
            session.rollback()
            session.commit()  # of nothing
        with Session(engine) as session, fence.enforce(session):
            session.rollback()

    answer = behind(work)(headers=TOKEN)
    assert (answer.status_code, answer.headers.get("fencing-token-highest")) == (200, None)
    claimable(engine).claim("job:x", 6)  # it is as it was


@both
def test_without_a_block_the_handler_commits_by_itself_behind_the_same_fence(
    behind: Callable[..., Send], engine: Engine
) -> None:
    def work(fence: Fence) -> None:
        with Session(engine) as session:
            fence.enforce(session)
            add(session)
            session.commit()

    send = behind(work)
    assert send(headers=TOKEN).status_code == 200
    claimable(engine).claim("job:x", 8)
    assert send(headers=TOKEN).status_code == 412
    assert notes(engine) == ["n"]


@both
def test_a_block_that_was_left_is_not_entered_again_without_its_fence(
    behind: Callable[..., Send], engine: Engine
) -> None:
    def work(fence: Fence) -> None:
        with Session(engine) as session:
            enforced = fence.enforce(session)
            with enforced:
                add(session)
            with pytest.raises(UnsafeConfiguration, match="again"), enforced:
                pytest.fail("it was let in")
            with fence.enforce(session):
                add(session)

    assert behind(work)(headers=TOKEN).status_code == 200
    assert notes(engine) == ["n", "n"]


@both
def test_what_is_not_committed_when_the_request_ends_is_rolled_back_and_the_fence_is_free(
    behind: Callable[..., Send], engine: Engine
) -> None:
    kept: list[Session] = []

    def work(fence: Fence) -> None:
        kept.append(Session(engine))
        fence.enforce(kept[0])
        add(kept[0])

    assert behind(work)(headers=TOKEN).status_code == 200
    claimable(engine).claim("job:x", 8)  # would wait for an open transaction
    add(kept[0])  # and the session is behind that fence no more
    kept[0].commit()
    kept[0].close()
    assert notes(engine) == ["n"]


@both
def test_a_session_that_has_begun_is_refused_since_what_it_read_may_be_old(
    behind: Callable[..., Send], engine: Engine
) -> None:
    def work(fence: Fence) -> None:
        with Session(engine) as session:
            session.execute(text("SELECT 1"))
            with pytest.raises(UnsafeConfiguration):
                fence.enforce(session)
            raise ZeroDivisionError

    assert behind(work)(headers=TOKEN).status_code == 500


@both
def test_a_write_that_is_answered_without_enforce_becomes_a_500_that_names_the_route(
    behind: Callable[..., Send], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "fencegate.middleware"):
        answer = behind(nothing)(headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]) == (500, "NOT_ENFORCED")
    assert answer.json()["outcome"] == "unknown"
    assert "PUT /jobs/" in caplog.text


@both
def test_where_it_is_not_strict_that_is_logged_only(
    behind: Callable[..., Send], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fencegate.middleware"):
        assert behind(nothing, strict=False)(headers=TOKEN).status_code == 200
    assert "without fence.enforce" in caplog.text


@both
def test_a_handler_may_say_that_it_writes_nothing_or_pass_the_token_on(behind: Callable[..., Send]) -> None:
    assert behind(lambda fence: fence.waive())(headers=TOKEN).status_code == 200
    passed_on: list[dict[str, str]] = []
    assert behind(lambda fence: passed_on.append(fence.headers()))(headers=TOKEN).status_code == 200
    assert passed_on == [{"Fencing-Token": "7", "Fencing-Lock": "job:x"}]


@both
def test_a_read_need_not_enforce(behind: Callable[..., Send]) -> None:
    assert behind(nothing)(method="GET", headers=TOKEN).status_code == 200


@both
def test_a_stale_token_that_the_handler_swallows_is_still_no_success(
    behind: Callable[..., Send], engine: Engine
) -> None:
    claimable(engine).claim("job:x", 8)

    def work(fence: Fence) -> None:
        with pytest.raises(StaleToken), Session(engine) as session, fence.enforce(session):
            pass

    assert behind(work)(headers=TOKEN).status_code == 412


def test_a_stale_token_that_the_handler_makes_another_error_of_is_still_told(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """As every task group does. The error that it became reaches us and not the framework, so we log it."""
    claimable(engine).claim("job:x", 8)

    async def handler(request: Request) -> Response:
        try:
            with Session(engine) as session, require_fence("job:x").enforce(session):
                return Response()
        except StaleToken as stale:
            raise ExceptionGroup("of a task group", [stale]) from None

    app = Starlette(routes=[Route("/jobs/x", handler, methods=["PUT"])], middleware=[Middleware(FenceMiddleware)])
    answer = sender(httpx.ASGITransport(app, raise_app_exceptions=False))(headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]) == (412, "STALE_TOKEN")
    assert "of a task group" in caplog.text


@both
def test_the_stale_token_of_a_lock_that_the_handler_holds_itself_is_not_told_as_the_callers(
    behind: Callable[..., Send],
) -> None:
    def work(fence: Fence) -> None:
        raise StaleToken(3, 4)

    assert behind(work)(headers=TOKEN).status_code == 500


@both
def test_a_refusal_that_a_second_attempt_overcame_says_nothing_of_a_later_failure(
    behind: Callable[..., Send], engine: Engine, tmp_path: Path
) -> None:
    away = create_engine(f"sqlite:///{tmp_path / 'no' / 'such.db'}")

    def work(fence: Fence) -> None:
        with pytest.raises(ResourceUnavailable):
            fence.enforce(Session(away))
        with Session(engine) as session, fence.enforce(session):
            add(session)
        raise ZeroDivisionError

    answer = behind(work)(headers=TOKEN)
    assert answer.status_code == 500
    assert "not-written" not in answer.text
    assert notes(engine) == ["n"]


def committed_by_block(fence: Fence, engine: Engine) -> None:
    with Session(engine) as session, fence.enforce(session):
        add(session)


def committed_by_session(fence: Fence, engine: Engine) -> None:
    with Session(engine) as session:
        fence.enforce(session)
        add(session)
        session.commit()


def committed_by_connection(fence: Fence, engine: Engine) -> None:
    with engine.connect() as connection:
        fence.enforce(connection)
        connection.execute(text("INSERT INTO notes VALUES ('n')"))
        connection.commit()


@both
@pytest.mark.parametrize("first", [committed_by_block, committed_by_session, committed_by_connection])
def test_what_was_half_written_when_a_newer_holder_came_is_not_told_as_refused(
    behind: Callable[..., Send], engine: Engine, first: Callable[[Fence, Engine], None]
) -> None:
    def work(fence: Fence) -> None:
        first(fence, engine)
        claimable(engine).claim("job:x", 8)
        fence.enforce(Session(engine))

    answer = behind(work)(headers=TOKEN)
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")
    assert answer.headers["fencing-token-highest"] == "8"
    assert notes(engine) == ["n"]


@both
@pytest.mark.parametrize("again", [False, True], ids=["raised", "tried again"])
def test_a_commit_of_the_handlers_own_that_failed_is_told_as_unknown_and_not_as_refused(
    behind: Callable[..., Send], tmp_path: Path, *, again: bool
) -> None:
    """The COMMIT of a handler that uses no block may have landed, whatever a later attempt is told."""
    impatient = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 0.1})
    with impatient.begin() as connection:
        connection.execute(text("CREATE TABLE notes (note TEXT)"))

    def work(fence: Fence) -> None:
        with impatient.connect() as reader, Session(impatient) as session:
            fence.enforce(session)
            add(session)
            reader.exec_driver_sql("BEGIN")
            reader.exec_driver_sql("SELECT * FROM notes")  # SQLite can't commit while somebody reads
            with pytest.raises(OperationalError, match="locked") if again else contextlib.nullcontext():
                session.commit()
            reader.rollback()
            session.rollback()
        claimable(impatient).claim("job:x", 8)
        fence.enforce(Session(impatient))

    claimable(impatient).claim("job:x", 1)
    answer = behind(work)(headers=TOKEN)
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")
    impatient.dispose()


@both
@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
def test_a_commit_of_a_connection_that_failed_is_told_as_unknown_and_its_mark_is_not_told(
    behind: Callable[..., Send], tmp_path: Path, *, swallowed: bool
) -> None:
    impatient = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 0.1})
    with impatient.begin() as connection:
        connection.execute(text("CREATE TABLE notes (note TEXT)"))

    def work(fence: Fence) -> None:
        with impatient.connect() as reader, impatient.connect() as connection:
            fence.enforce(connection)
            connection.execute(text("INSERT INTO notes VALUES ('n')"))
            reader.exec_driver_sql("BEGIN")
            reader.exec_driver_sql("SELECT * FROM notes")
            with contextlib.suppress(OperationalError) if swallowed else contextlib.nullcontext():
                connection.commit()

    claimable(impatient).claim("job:x", 1)
    answer = behind(work)(headers=TOKEN)
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")
    assert "fencing-token-highest" not in answer.headers
    impatient.dispose()


@both
def test_a_commit_of_a_connection_that_failed_stays_in_doubt_when_a_later_one_is_refused(
    behind: Callable[..., Send], tmp_path: Path
) -> None:
    impatient = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 0.1})

    def work(fence: Fence) -> None:
        with impatient.connect() as reader, impatient.connect() as connection:
            fence.enforce(connection)
            reader.exec_driver_sql("BEGIN")
            reader.exec_driver_sql("SELECT * FROM fencegate_fences")
            with pytest.raises(OperationalError, match="locked"):
                connection.commit()
            reader.rollback()
            connection.rollback()
            claimable(impatient).claim("job:x", 8)
            connection.execute(text("SELECT 1"))

    claimable(impatient).claim("job:x", 1)
    answer = behind(work)(headers=TOKEN)
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")
    impatient.dispose()


@both
def test_a_session_whose_connection_is_committed_by_the_handler_leaves_nothing_in_doubt(
    behind: Callable[..., Send], engine: Engine
) -> None:
    def work(fence: Fence) -> None:
        with engine.connect() as connection, Session(connection) as session:
            fence.enforce(session)
            add(session)
            connection.commit()

    answer = behind(work)(headers=TOKEN)
    assert (answer.status_code, answer.headers["fencing-token-highest"]) == (200, "7")
    assert notes(engine) == ["n"]


@both
def test_a_connection_that_commits_twice_is_told_of_both_and_left_as_it_was(
    behind: Callable[..., Send], engine: Engine
) -> None:
    with engine.connect() as connection:
        before = set(vars(connection))

        def work(fence: Fence) -> None:
            fence.enforce(connection)
            add(connection)
            connection.commit()
            with fence.enforce(connection):
                add(connection)
            add(connection)
            connection.commit()

        answer = behind(work)(headers=TOKEN)
        assert (answer.status_code, answer.headers["fencing-token-highest"]) == (200, "7")
        assert not {name for name in set(vars(connection)) - before if "commit" in name or "told" in name}
    assert notes(engine) == ["n", "n", "n"]


@both
@pytest.mark.parametrize("is_block", [False, True])
def test_a_commit_that_failed_and_that_the_handler_swallows_is_not_told_as_done(
    behind: Callable[..., Send], tmp_path: Path, *, is_block: bool
) -> None:
    impatient = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 0.1})
    with impatient.begin() as connection:
        connection.execute(text("CREATE TABLE notes (note TEXT)"))
    claimable(impatient).claim("job:x", 1)

    def work(fence: Fence) -> None:
        with impatient.connect() as reader, Session(impatient) as session:
            enforced = fence.enforce(session)
            add(session)
            reader.exec_driver_sql("BEGIN")
            reader.exec_driver_sql("SELECT * FROM notes")
            with contextlib.suppress(OperationalError, ResourceUnavailable):
                if is_block:
                    with enforced:
                        pass
                else:
                    session.commit()
            reader.rollback()

    answer = behind(work)(headers=TOKEN)
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")
    impatient.dispose()


@both
def test_a_commit_that_failed_is_not_told_as_done_when_the_next_attempt_could_not_reach_the_fence(
    behind: Callable[..., Send], tmp_path: Path
) -> None:
    impatient = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 0.1})
    claimable(impatient).claim("job:x", 1)

    def work(fence: Fence) -> None:
        with impatient.connect() as reader, Session(impatient) as session:
            fence.enforce(session)
            reader.exec_driver_sql("BEGIN")
            reader.exec_driver_sql("SELECT * FROM fencegate_fences")
            with pytest.raises(OperationalError, match="locked"):
                session.commit()
            session.rollback()
            reader.rollback()
            reader.exec_driver_sql("BEGIN IMMEDIATE")
            with pytest.raises(ResourceUnavailable) as unreached:
                fence.enforce(Session(impatient))
            assert unreached.value.outcome == "not-written"

    answer = behind(work)(headers=TOKEN)
    assert (answer.status_code, answer.json().get("outcome")) == (503, "unknown")
    impatient.dispose()


@both
def test_a_constraint_that_is_judged_at_the_commit_leaves_nothing_in_doubt(
    behind: Callable[..., Send], engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parts (id INTEGER PRIMARY KEY)"))
        late = "part INTEGER REFERENCES parts (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE uses ({late})"))

    def work(fence: Fence) -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")
            connection.rollback()
            with pytest.raises(IntegrityError), Session(connection) as session, fence.enforce(session):
                session.execute(text("INSERT INTO uses VALUES (1)"))
        claimable(engine).claim("job:x", 8)
        fence.enforce(Session(engine))

    assert behind(work)(headers=TOKEN).status_code == 412


@both
def test_a_first_attempt_that_was_rolled_back_is_told_as_refused(behind: Callable[..., Send], engine: Engine) -> None:
    def work(fence: Fence) -> None:
        with pytest.raises(ZeroDivisionError), Session(engine) as session, fence.enforce(session):
            add(session)
            raise ZeroDivisionError
        claimable(engine).claim("job:x", 8)
        fence.enforce(Session(engine))

    assert behind(work)(headers=TOKEN).status_code == 412
    assert notes(engine) == []


def test_a_wsgi_application_that_fails_in_its_answer_is_cut_off_and_not_told_as_done() -> None:
    def application(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"half"
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            start_response("500 Internal Server Error", [], sys.exc_info())
            yield b"of an answer"

    with pytest.raises(ZeroDivisionError):
        wsgi_sender(WsgiFenceMiddleware(application))(method="GET")


@both
def test_a_database_that_is_away_is_a_503(behind: Callable[..., Send], tmp_path: Path) -> None:
    away = create_engine(f"sqlite:///{tmp_path / 'no' / 'such.db'}")
    answer = behind(lambda fence: fence.enforce(Session(away)))(headers=TOKEN)
    assert (answer.status_code, answer.json()["outcome"]) == (503, "not-written")


def test_outside_of_the_middleware_there_is_no_fence() -> None:
    with pytest.raises(UnsafeConfiguration, match="FenceMiddleware"):
        require_fence("job:x")


# --- rules ---


def ruled(*rules: Guarded) -> Send:
    """An app that tells the lock key of its fence."""

    async def handler(request: Request) -> Response:
        fence = current_fence()
        assert request.scope["fencegate.fence"] is fence
        fence.waive()
        return Response(fence.lock_key)

    return sender(httpx.ASGITransport(FenceMiddleware(handler_app(handler), rules=rules), raise_app_exceptions=False))


def handler_app(handler: Callable[[Request], Awaitable[Response]]) -> Any:
    return Starlette(routes=[Route("/{path:path}", handler, methods=["GET", "PUT", "POST"])])


@pytest.mark.parametrize(
    ("rule", "path", "lock_key"),
    [
        (Guarded("/accounts/{id}", "acct:{id}"), "/accounts/7", "acct:7"),
        (Guarded("/accounts/{id}", "acct:{id}"), "/accounts/7/", "acct:7"),
        (Guarded("/accounts/{id}/", "acct:{id}"), "/accounts/7", "acct:7"),
        (Guarded("/t/{tenant}/a/{id:int}", "acct:{tenant}"), "/t/acme/a/7", "acct:acme"),
        (Guarded("/files/{name:path}", "file:{name}"), "/files/a/b.txt", "file:a/b.txt"),
        (Guarded("/jobs", "job:rebuild"), "/jobs", "job:rebuild"),
        (Guarded("/jobs", "job:rebuild"), "/jobs%0A", "job:rebuild"),  # Starlette takes it for /jobs
        (Guarded("/a/{id}", lambda names: f"acct:{names['id'].lower()}"), "/a/Bob", "acct:bob"),
    ],
)
def test_a_rule_gives_the_lock_of_a_path(rule: Guarded, path: str, lock_key: str) -> None:
    assert ruled(rule)(path=path, headers=TOKEN).text == lock_key
    assert ruled(rule)(path=path).status_code == 428


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int", "007"), ("int", "+7"), ("int", "\u0667"), ("uuid", "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6")],
)
def test_another_spelling_of_a_number_is_refused(kind: str, text: str) -> None:
    answer = ruled(Guarded(f"/a/{{id:{kind}}}", "acct:{id}"))(path=f"/a/{text}", headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]) == (422, "INVALID_ID")


def test_a_name_that_is_no_part_of_a_lock_key_is_refused() -> None:
    answer = ruled(Guarded("/files/{name:path}", "file:{name}"))(path="/files/a//b", headers=TOKEN)
    assert answer.status_code == 422


def test_a_path_without_a_rule_reaches_its_handler_which_finds_no_fence() -> None:
    assert ruled(Guarded("/a/{id}", "acct:{id}"))(path="/b/7", headers=TOKEN).status_code == 500


def test_a_read_under_a_rule_is_bound_when_it_brings_a_token_and_free_when_not() -> None:
    send = ruled(Guarded("/a/{id}", "acct:{id}"))
    assert send("GET", "/a/7", TOKEN).text == "acct:7"
    assert send("GET", "/a/7", {"Fencing-Token": "x"}).status_code == 400
    assert send("GET", "/a/7").status_code == 500  # its handler asks for the fence all the same


def test_a_rule_may_name_the_methods_that_need_a_token() -> None:
    send = ruled(Guarded("/a/{id}", "acct:{id}", methods=["get"]))
    assert send("GET", "/a/7").status_code == 428


def test_a_method_in_small_letters_is_no_way_round_a_rule() -> None:
    """Flask and Django read `put` as PUT, and some servers pass it on as it came."""
    flask = Flask("test")
    flask.put("/a/<name>")(lambda name: pytest.fail("it ran"))
    app = WsgiFenceMiddleware(flask.wsgi_app, rules=[Guarded("/a/{id}", "acct:{id}", methods=["PUT"])])
    environ: dict[str, Any] = {"REQUEST_METHOD": "put", "PATH_INFO": "/a/7"}
    setup_testing_defaults(environ)
    statuses: list[str] = []
    list(app(environ, lambda status, *_: statuses.append(status)))  # type: ignore[arg-type]
    assert statuses == ["428 Precondition Required"]


@pytest.mark.parametrize(
    ("path", "guard"),
    [("a/{id}", "a:{id}"), ("/a/{id}", "a:{other}"), ("/a/{id", "a"), ("/{a}/{a}", "a:{a}"), ("/{a:float}", "a:{a}")],
)
def test_a_rule_that_can_not_be_right_is_refused_at_start(path: str, guard: str) -> None:
    with pytest.raises(UnsafeConfiguration):
        Guarded(path, guard)


# --- FastAPI ---


@pytest.fixture
async def async_engine(engine: Engine, tmp_path: Path) -> Any:
    made = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'app.db'}")
    yield made
    await made.dispose()


def by_template() -> Any:
    return required_fence("acct:{account_id}")


def by_function() -> Any:
    def lock(account_id: int) -> str:
        return f"acct:{account_id}"

    return required_fence(lock)


async def fastapi_client(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=TOKEN)


@pytest.mark.parametrize("guard", [by_template, by_function])
async def test_the_dependency_makes_the_lock_key_of_what_the_endpoint_gets(guard: Callable[[], Any]) -> None:
    app = FastAPI()
    app.add_middleware(FenceMiddleware)

    @app.put("/accounts/{account_id}")
    async def put(account_id: int, fence: Annotated[Fence, Depends(guard())]) -> str:
        fence.waive()
        return fence.lock_key

    async with await fastapi_client(app) as client:
        for spelling in ("7", "007", "+7", "7.0"):
            assert (await client.put(f"/accounts/{spelling}")).json() == "acct:7"
        assert (await client.put("/accounts/x")).status_code == 422
        assert (await client.put("/accounts/7", headers={"Fencing-Token": "x"})).status_code == 400
        parameters = app.openapi()["paths"]["/accounts/{account_id}"]["put"]["parameters"]
        assert {"fencing-token", "fencing-lock"} <= {each["name"] for each in parameters}


@pytest.mark.parametrize("name", ["a%00b", "a%0d%0ab", "x" * 2000], ids=["NUL", "CRLF", "long"])
async def test_a_name_of_which_the_dependency_can_make_no_lock_key_is_refused(name: str) -> None:
    app = FastAPI()
    app.add_middleware(FenceMiddleware)

    @app.put("/files/{name}")
    async def put(name: str, fence: Annotated[Fence, Depends(required_fence("file:{name}"))]) -> None:
        pytest.fail("it ran")

    async with await fastapi_client(app) as client:
        answer = await client.put(f"/files/{name}")
        assert (answer.status_code, answer.json()["error"]) == (422, "INVALID_KEY")
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_template_that_names_what_the_endpoint_does_not_take_protects_nothing_and_says_so() -> None:
    app = FastAPI()
    app.add_middleware(FenceMiddleware)

    @app.put("/accounts/{account_id}")
    async def put(request: Request, fence: Annotated[Fence, Depends(by_template())]) -> None:
        pytest.fail("it ran")

    async with await fastapi_client(app) as client:
        assert (await client.put("/accounts/7")).status_code == 500


KINDS: dict[str, tuple[Any, dict[str, str | None]]] = {
    "uuid": (UUID, dict.fromkeys(["F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6", "f81d4fae7dec11d0a76500a0c91e6bf6"],
                                 "acct:f81d4fae-7dec-11d0-a765-00a0c91e6bf6")),
    "date": (date, {"2030-01-31": "acct:2030-01-31"}),
    "decimal": (Decimal, {"1.0": None, "1.00": None, "7": None}),
    "float": (float, {"0.0": None, "-0.0": None}),
    "time": (datetime, {"2030-01-31T12:00:00Z": None, "2030-01-31T13:00:00+01:00": None}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_a_parameter_whose_equal_values_are_spelt_differently_makes_no_lock_key(kind: str) -> None:
    type_, expected = KINDS[kind]
    app = FastAPI()
    app.add_middleware(FenceMiddleware)

    async def put(account_id: Any, fence: Annotated[Fence, Depends(by_template())]) -> str:
        fence.waive()
        return fence.lock_key

    put.__annotations__["account_id"] = type_
    app.put("/accounts/{account_id}")(put)
    async with await fastapi_client(app) as client:
        for spelling, lock_key in expected.items():
            answer = await client.put(f"/accounts/{spelling}")
            if lock_key is None:
                assert answer.status_code == 500, answer.text
            else:
                assert answer.json() == lock_key


async def test_without_the_middleware_the_dependency_refuses_to_work() -> None:
    app = FastAPI()

    @app.put("/accounts/{account_id}")
    async def put(account_id: int, fence: Annotated[Fence, Depends(by_template())]) -> None:
        pytest.fail("it ran")

    async with await fastapi_client(app) as client:
        assert (await client.put("/accounts/7")).status_code == 500


async def test_an_async_session_is_behind_the_fence_in_a_block_and_by_await(
    engine: Engine, async_engine: AsyncEngine
) -> None:
    app = FastAPI()
    app.add_middleware(FenceMiddleware)
    Required = Annotated[Fence, Depends(required_fence("job:x"))]

    @app.put("/block")
    async def block(fence: Required) -> None:
        async with AsyncSession(async_engine) as session, fence.enforce(session):
            await session.run_sync(add, "block")

    @app.put("/await")
    async def awaited(fence: Required) -> None:
        async with AsyncSession(async_engine) as session:
            await fence.enforce(session)
            await session.run_sync(add, "await")
            await session.commit()

    @app.put("/forgotten")
    async def forgotten(fence: Required) -> None:
        async with AsyncSession(async_engine) as session:
            fence.enforce(session)
            await session.run_sync(add, "forgotten")
            await session.commit()

    async with await fastapi_client(app) as client:
        assert (await client.put("/block")).status_code == 200
        assert (await client.put("/await")).status_code == 200
        assert (await client.put("/forgotten")).status_code == 500
        claimable(engine).claim("job:x", 8)
        assert (await client.put("/block")).status_code == 412
        assert (await client.put("/await")).status_code == 412
    assert notes(engine) == ["block", "await"]


async def test_a_fenced_read_claims_and_a_plain_one_does_not(engine: Engine) -> None:
    app = FastAPI()
    app.add_middleware(FenceMiddleware)

    @app.get("/notes")
    def read(fence: Annotated[Fence | None, Depends(optional_fence("job:x"))]) -> int:
        with Session(engine) as session:
            if fence is not None:
                fence.enforce(session)
            found = session.scalars(text("SELECT count(*) FROM notes")).one()
            session.commit()
            return int(found)

    async with await fastapi_client(app) as client:
        assert (await client.get("/notes")).headers["fencing-token-highest"] == "7"
        del client.headers["Fencing-Token"]
        assert (await client.get("/notes")).json() == 0
    with pytest.raises(StaleToken):
        claimable(engine).claim("job:x", 6)


def test_a_handler_may_ask_for_the_fence_of_a_read() -> None:
    told: list[Fence | None] = []

    async def handler(request: Request) -> Response:
        told.append(try_fence("job:x"))
        return Response()

    send = sender(httpx.ASGITransport(FenceMiddleware(handler_app(handler))))
    send("GET", "/")
    send("GET", "/", TOKEN)
    assert told[0] is None
    assert told[1] is not None
    assert told[1].token == 7


@both
def test_one_request_is_for_one_lock(behind: Callable[..., Send]) -> None:
    def work(fence: Fence) -> None:
        assert require_fence("job:x") is fence
        with pytest.raises(UnsafeConfiguration, match="one lock"):
            require_fence("job:y")
        with pytest.raises(InvalidInput):
            raise InvalidInput("a", "b")
        fence.waive()

    assert behind(work)(headers=TOKEN).status_code == 200
