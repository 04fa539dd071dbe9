"""A body that is not streamed: what every adapter of objects must do with it."""

import pytest

from fencegate.core.errors import StaleToken, TooLarge
from fencegate.core.ports import Objects
from tests.folder_objects import FENCE, KEY, get


async def check_whole_bodies(objects: Objects) -> None:
    """It is written as its parts would be, or refused."""
    for data in (b"", b"some", b"x" * objects.max_bytes):
        seen = await objects.write(KEY, FENCE, 7, data, content_type="text/plain", metadata={})
        info, _ = await objects.head(KEY, FENCE)
        assert info is not None
        assert (info.size, info.etag, info.token) == (len(data), seen.etag, 7)
        assert await get(objects, KEY) == data
    with pytest.raises(TooLarge):
        await objects.write(KEY, FENCE, 8, b"y" * (objects.max_bytes + 1), content_type="", metadata={})
    with pytest.raises(StaleToken):
        await objects.write(KEY, FENCE, 6, b"stale", content_type="", metadata={})
    assert await get(objects, KEY) == data
