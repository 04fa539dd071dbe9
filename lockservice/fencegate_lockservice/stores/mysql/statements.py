"""The statements of `statements.sql`, by name."""

import re
from collections.abc import Iterable
from pathlib import Path

NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"
"""The server's time in Unix microseconds, given that the session is in UTC. Unlike UNIX_TIMESTAMP it goes past 2038."""


def _read() -> dict[str, str]:
    text = Path(__file__).with_name("statements.sql").read_text(encoding="utf-8")
    found = {}
    for part in re.split(r"^-- (?=\w+(?::|$))", text, flags=re.MULTILINE)[1:]:
        name = re.match(r"\w+", part)
        assert name is not None
        _, *lines = part.splitlines()
        body = " ".join(line.strip() for line in lines if line.strip() and not line.startswith("--"))
        found[name[0]] = body.removesuffix(";")
    return found


_STATEMENTS = _read()


def sql(name: str, **filled_in: str | int) -> str:
    """A statement, with what stands in braces filled in."""
    return _STATEMENTS[name].format(now=NOW, **filled_in)


def literal(value: bytes) -> str:
    """As hexadecimal: nothing to escape, whatever the character set of the session."""
    return f"x'{value.hex()}'"


def literals(values: Iterable[bytes]) -> str:
    return ", ".join(map(literal, values))


def names(values: Iterable[str]) -> str:
    return literals(value.encode() for value in values)
