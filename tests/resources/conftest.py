"""Servers that the tests of resources share: each is started once per worker."""

from tests.resources.bucket_fixtures import (
    azurite_server,
    azurite_url,
    bucket_credentials,
    moto_server,
    seaweed_server,
    seaweed_url,
)
from tests.stores.mysql_fixtures import mysql_server
from tests.stores.postgres_fixtures import postgres_server

__all__ = [
    "azurite_server",
    "azurite_url",
    "bucket_credentials",
    "moto_server",
    "mysql_server",
    "postgres_server",
    "seaweed_server",
    "seaweed_url",
]
