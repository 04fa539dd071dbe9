"""Objects in a bucket keep the resource contract: on a real S3 server in both layouts, and on a fake."""

import pytest

from fencegate.testing.resource_suite import ResourceSuite, Subject
from tests.real import moto, seaweed
from tests.resources.bucket_fixtures import BucketSubject, bucket_url


class TestFramedOnSeaweed(ResourceSuite):
    @pytest.fixture
    def subject(self, seaweed_server: seaweed.SeaweedServer) -> Subject:
        return BucketSubject(bucket_url(seaweed_server.endpoint))


class TestPointerOnSeaweed(ResourceSuite):
    @pytest.fixture
    def subject(self, seaweed_server: seaweed.SeaweedServer) -> Subject:
        return BucketSubject(bucket_url(seaweed_server.endpoint), "pointer")


class TestFramedOnMoto(ResourceSuite):
    @pytest.fixture
    def subject(self, moto_server: moto.MotoServer) -> Subject:
        return BucketSubject(bucket_url(moto_server.endpoint))


class TestFramedOnAzurite(ResourceSuite):
    @pytest.fixture
    def subject(self, azurite_url: str) -> Subject:
        return BucketSubject(azurite_url)


class TestPointerOnAzurite(ResourceSuite):
    @pytest.fixture
    def subject(self, azurite_url: str) -> Subject:
        return BucketSubject(azurite_url, "pointer")
