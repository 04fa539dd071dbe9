"""Buckets for the tests of objects: a real S3 server and a fake, started once, and a prefix for each test."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import certifi
import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Key, Objects, Resource, Seen
from fencegate.testing.resource_suite import PER_KEY, Mode
from fencegate_adapters.objects import BucketObjects
from tests.folder_objects import get, put
from tests.real import azurite, moto, seaweed

BUCKET = "fencegate"
END = "END CERTIFICATE-----\n"
MakeUrl = Callable[..., str]


def bucket_url(endpoint: str, prefix: str = "") -> str:
    return f"s3://{BUCKET}/{prefix or SYSTEM.random_id(6)}?endpoint={endpoint}&region=us-east-1"


@pytest.fixture(scope="session")
def bucket_credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """In the environment, where they belong. Processes of the fork server may have been begun before, and are to be
    given them."""
    # obstore reads all authorities for each client, even for one without TLS: one is enough, and 20 ms less.
    authority = tmp_path_factory.mktemp("authority") / "one.pem"
    authority.write_text(Path(certifi.where()).read_text().partition(END)[0] + END)
    given = {
        "AWS_ACCESS_KEY_ID": seaweed.ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": seaweed.SECRET_KEY,
        "AZURE_STORAGE_ACCOUNT_KEY": azurite.KEY,
        "SSL_CERT_FILE": str(authority),
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ |= given
    yield given
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def seaweed_server(
    tmp_path_factory: pytest.TempPathFactory, bucket_credentials: dict[str, str]
) -> Iterator[seaweed.SeaweedServer]:
    """A real S3 server, which no test kills."""
    if reason := seaweed.missing():
        pytest.skip(reason)
    server = seaweed.SeaweedServer(tmp_path_factory.mktemp("seaweed")).start()
    server.make_bucket(BUCKET)
    yield server
    server.terminate()


@pytest.fixture(scope="session")
def moto_server(
    tmp_path_factory: pytest.TempPathFactory, bucket_credentials: dict[str, str]
) -> Iterator[moto.MotoServer]:
    if reason := moto.missing():
        pytest.skip(reason)
    server = moto.MotoServer(tmp_path_factory.mktemp("moto")).start()
    server.make_bucket(BUCKET)
    yield server
    server.terminate()


@pytest.fixture(scope="session")
def azurite_server(
    tmp_path_factory: pytest.TempPathFactory, bucket_credentials: dict[str, str]
) -> Iterator[azurite.AzuriteServer]:
    if reason := azurite.missing():
        pytest.skip(reason)
    server = azurite.AzuriteServer(tmp_path_factory.mktemp("azurite")).start()
    server.make_container(BUCKET)
    yield server
    server.terminate()


@pytest.fixture
def azurite_url(azurite_server: azurite.AzuriteServer) -> str:
    """A prefix that no other test uses."""
    options = f"account={azurite.ACCOUNT}&endpoint={azurite_server.endpoint}"
    return f"az://{BUCKET}/{SYSTEM.random_id(6)}?{options}"


@pytest.fixture
def seaweed_url(seaweed_server: seaweed.SeaweedServer) -> str:
    """A prefix that no other test uses."""
    return bucket_url(seaweed_server.endpoint)


@asynccontextmanager
async def bucket_objects(url: str, layout: str = "framed", **more: object) -> AsyncIterator[BucketObjects]:
    objects = BucketObjects("s", url, **{"guard_template": PER_KEY, "layout": layout, **more})  # type: ignore[arg-type]
    try:
        await objects.open()
        yield objects
    finally:
        await objects.close()


class BucketSubject:
    """A bucket under the resource suite."""

    def __init__(self, url: str, layout: str = "framed") -> None:
        self._url = url
        self._layout = layout

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> BucketObjects:
        layout: str = self._layout
        return BucketObjects(
            "s",
            self._url,
            guard_template=guard,
            mode=mode,
            layout="pointer" if layout == "pointer" else "framed",
        )

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        return await put(cast(Objects, resource), key, fence, text.encode(), token)

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        data = await get(cast(Objects, resource), key, fence, token)
        return None if data is None else data.decode()
