"""Which marks were met lately: a guess that decides which statement is tried first, and nothing else."""

from fencegate_adapters.sql.passing.claims import Claims

_MOST = 1024


class Seen:
    """In one database, as an engine or a connection knows it: lock keys, and the token that their mark was at."""

    def __init__(self) -> None:
        self._marks: dict[str, int] = {}
        self.careful = False
        """Transactions were found to keep their first snapshot."""

    def all_of(self, claims: Claims) -> bool:
        return claims.tokens.items() <= self._marks.items()

    def add(self, claims: Claims) -> None:
        if len(self._marks) > _MOST:
            self._marks.clear()
        self._marks.update(claims.tokens)
