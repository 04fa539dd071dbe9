"""Accounts behind a fence, with FastAPI: `uvicorn fencegate_demo.services.fastapi_app:app`."""

import os
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencegate.middleware import Fence, FenceMiddleware
from fencegate.middleware.fastapi import required_fence

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///accounts.db"))


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    balance: Mapped[int]


class Balance(BaseModel):
    balance: int


Base.metadata.create_all(engine)
app = FastAPI(title="Accounts")
app.add_middleware(FenceMiddleware)

# The lock key is made of the account's number as the endpoint gets it: 007 and 7 are one account, and one lock.
AccountFence = Annotated[Fence, Depends(required_fence("acct:{account_id}"))]


@app.get("/accounts/{account_id}")
def read(account_id: int) -> Balance:
    with Session(engine) as session:
        account = session.get(Account, account_id)
        if account is None:
            raise HTTPException(404)
        return Balance(balance=account.balance)


@app.put("/accounts/{account_id}", status_code=204)
def write(account_id: int, body: Balance, fence: AccountFence) -> None:
    # Whoever holds the lock is let in; a token that is older than one that was here before raises StaleToken, which is
    # answered as 412. From here to the commit at the end of the block no newer holder can come between.
    with Session(engine) as session, fence.enforce(session):
        session.merge(Account(id=account_id, balance=body.balance))


@app.post("/accounts/{account_id}/claim", status_code=204)
def claim(account_id: int, fence: AccountFence) -> None:
    """For `locks.hold("acct:7", claim=["http://…/accounts/7"])`: the fence is raised, and nothing else."""
    with Session(engine) as session, fence.enforce(session):
        pass
