"""The tables of the fence in front of an HTTP service: marks, writes under way, and how it is protected."""

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql

from fencegate.core.names import MAX_LOCK_KEY_BYTES

# Bytes, not text: by the rules of a collation 'a' may equal 'A', or 'a ', and two fences would be one.
_KeyBytes = LargeBinary(MAX_LOCK_KEY_BYTES).with_variant(mysql.VARBINARY(MAX_LOCK_KEY_BYTES), "mysql", "mariadb")

metadata = MetaData()

marks = Table(
    "fencegate_http_marks",
    metadata,
    Column("lock_key", _KeyBytes, primary_key=True),
    Column("mode", String(16), primary_key=True),
    Column("token", BigInteger, nullable=False),
)

intents = Table(
    "fencegate_http_intents",
    metadata,
    Column("lock_key", _KeyBytes, primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("began_us", BigInteger, nullable=False),
    Column("deadline_us", BigInteger, nullable=False),
)

resources = Table(
    "fencegate_http_resources",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("guard", Text, nullable=False),
    Column("form", Text, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("floor", BigInteger, nullable=False),
)
