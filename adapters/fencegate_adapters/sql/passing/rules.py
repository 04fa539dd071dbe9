"""The rules of passing, by the kind of database."""

from typing import Protocol

from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters.sql.passing.claims import Claims
from fencegate_adapters.sql.passing.mysql import MysqlRules
from fencegate_adapters.sql.passing.postgresql import PostgresqlRules
from fencegate_adapters.sql.passing.sqlite import SqliteRules
from fencegate_adapters.sql.passing.steps import Ask, Steps


class Rules(Protocol):
    """What is asked of one kind of database."""

    @property
    def after(self) -> Ask | None:
        """What is said before a transaction that passed ends, when the database does not forget by itself."""

    def passing(self, claims: Claims, seen: bool, careful: bool = False) -> Steps[bool]:
        """The first statements of a transaction: they raise the fences, or find them raised, and hold their locks until
        the commit. Raises StaleToken, or ClaimFirst. With `seen`, the marks are likely to be at these tokens already.

        False means that the floors which were looked at may be old: begin again, `careful`, with nothing before it.
        """

    def claiming(self, claims: Claims) -> Steps[None]:
        """A transaction of its own that only raises the marks; for the answer ClaimFirst."""

    def floor(self, claims: Claims) -> Steps[None]:
        """StaleToken when a floor is above a token, as another connection sees it while a transaction has passed."""


_RULES: dict[str, Rules] = {
    "mariadb": MysqlRules(),
    "mysql": MysqlRules(),
    "postgresql": PostgresqlRules(),
    "sqlite": SqliteRules(),
}
REMEMBERING = frozenset(kind for kind, rules in _RULES.items() if rules.after is not None)
"""Those that have to be told at the end of a transaction."""


def rules_of(kind: str) -> Rules:
    """The rules of the kind of database that SQLAlchemy and Django call by this name."""
    try:
        return _RULES[kind]
    except KeyError:
        supported = ", ".join(sorted(_RULES))
        raise UnsafeConfiguration(f"transactions in {kind} can't be fenced; supported: {supported}") from None
