"""Redis strings and hashes through the gateway, as a TOML file names them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis

from tests.resources.redis_fixtures import redis_server, redis_url
from tests.servers import MakeServer

__all__ = ["redis_server", "redis_url"]

CONFIG = """
[resources.cache]
url = "{url}?prefix=cache:"

[resources.users]
url = "{url}?prefix=user:"
values = "hashes"
guard = "job:users"
"""


@pytest.fixture
def gateway(redis_url: str, make_server: MakeServer, tmp_path: Path) -> Iterator[httpx.Client]:
    (tmp_path / "fencegate.toml").write_text(CONFIG.format(url=redis_url))
    server = make_server("data", "--role", "gateway", "--config", str(tmp_path / "fencegate.toml"))
    with httpx.Client(base_url=f"{server.url}/v1", timeout=30) as client:
        yield client


def test_strings_and_hashes_are_served_and_fenced(gateway: httpx.Client, redis_url: str) -> None:
    old, new = {"Fencing-Token": "7"}, {"Fencing-Token": "8"}
    with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
        path = "/resources/cache/a/b"
        put = gateway.put(path, content="0123456789", headers=old | {"Content-Type": "text/x", "X-Meta-Who": "me"})
        assert put.status_code == 201
        assert raw.get("cache:a/b") == "0123456789"
        assert gateway.put(path, content="again", headers=old | {"If-None-Match": "*"}).status_code == 412
        got = gateway.get(path, headers={"Range": "bytes=2-4"})
        assert (got.status_code, got.text, got.headers["content-type"]) == (206, "234", "text/x")
        assert got.headers["x-meta-who"] == "me"
        assert gateway.get(path, headers={"If-None-Match": put.headers["etag"]}).status_code == 304
        listed = gateway.get("/resources/cache", params={"prefix": "a/"}).json()["objects"]
        assert [(each["key"], each["size"], each["fencingToken"]) for each in listed] == [("a/b", 10, "7")]
        assert gateway.post(f"{path}/claim", headers=new).status_code == 200
        stale = gateway.put(path, content="late", headers=old)
        assert (stale.status_code, stale.json()["error"]) == (412, "STALE_TOKEN")
        assert gateway.put(path, content=b"x" * (16 * 1024 * 1024 + 1), headers=new).status_code == 413
        assert gateway.delete(path, headers=new).status_code == 204
        assert gateway.get(path).status_code == 404

        assert gateway.put("/resources/users/7", json={"name": "Ann", "age": 30}, headers=old).status_code == 201
        patched = gateway.patch(
            "/resources/users/7", json={"age": None}, headers=old | {"Prefer": "return=representation"}
        )
        assert patched.json() == {"name": "Ann"}
        writes = [{"op": "put", "key": "8", "value": {"name": "Bob"}}, {"op": "delete", "key": "7"}]
        assert gateway.post("/resources/users/batch", json={"writes": writes}, headers=new).status_code == 200
        assert raw.hgetall("user:8") == {"name": "Bob"}
        assert not raw.exists("user:7")
        assert gateway.put("/resources/users/9", json={"name": "late"}, headers=old).status_code == 412
        assert gateway.put("/resources/users/9", json={"price": 1.5}, headers=new).status_code == 422
        fence = gateway.get("/fences/users/9").json()
        assert (fence["lockKey"], fence["highestToken"], fence["guarantee"]) == ("job:users", "8", "atomic")
        assert "on disk before the answer" in fence["durability"]

        raw.flushdb()
        refused = gateway.put("/resources/users/9", json={"name": "late"}, headers=new)
        assert (refused.status_code, refused.json()["error"]) == (500, "UNSAFE_CONFIGURATION")
