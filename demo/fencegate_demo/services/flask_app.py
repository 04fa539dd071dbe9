"""Accounts behind a fence, with Flask: `flask --app fencegate_demo.services.flask_app run`."""

import os

from flask import Flask, abort, request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencegate.middleware import WsgiFenceMiddleware, require_fence

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///accounts.db"))


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    balance: Mapped[int]


Base.metadata.create_all(engine)
app = Flask(__name__)
app.wsgi_app = WsgiFenceMiddleware(app.wsgi_app)  # type: ignore[method-assign]  # the way that Flask documents


@app.get("/accounts/<int:account_id>")
def read(account_id: int) -> dict[str, int]:
    with Session(engine) as session:
        account = session.get(Account, account_id)
        if account is None:
            abort(404)
        return {"balance": account.balance}


@app.put("/accounts/<int:account_id>")
def write(account_id: int) -> tuple[str, int]:
    balance = int(request.get_json()["balance"])
    # The lock key is made of the number that the handler uses. Without a token this is answered as 428, with one that
    # is older than one that was here before as 412. From here to the commit at the end of the block no newer holder
    # can come between.
    fence = require_fence(f"acct:{account_id}")
    with Session(engine) as session, fence.enforce(session):
        session.merge(Account(id=account_id, balance=balance))
    return "", 204
