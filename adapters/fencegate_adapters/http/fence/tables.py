"""The tables of the fence in front of an HTTP service: marks, writes under way, and how it is protected."""

from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text

from fencegate_adapters.tables import IN_MYSQL, KeyBytes

metadata = MetaData()

marks = Table(
    "fencegate_http_marks",
    metadata,
    Column("lock_key", KeyBytes, primary_key=True),
    Column("mode", String(16), primary_key=True),
    Column("token", BigInteger, nullable=False),
    **IN_MYSQL,
)

intents = Table(
    "fencegate_http_intents",
    metadata,
    Column("lock_key", KeyBytes, primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("began_us", BigInteger, nullable=False),
    Column("deadline_us", BigInteger, nullable=False),
    **IN_MYSQL,
)

resources = Table(
    "fencegate_http_resources",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("guard", Text, nullable=False),
    Column("form", Text, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("floor", BigInteger, nullable=False),
    **IN_MYSQL,
)
