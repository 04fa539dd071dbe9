"""Rules over the paths of a service: which requests write, and under which lock."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fencegate.core.errors import InvalidInput, NotFound, TooLarge, UnsafeConfiguration
from fencegate.gateway.resources import ResourceSettings, UpstreamSettings
from fencegate_adapters.http import headers as rules
from fencegate_adapters.http.address import Address
from tests.resources.gateways import start_gateway
from tests.resources.plain_service import PlainService

FENCE = {"fence": "sqlite:////nowhere/fence.db"}
ROUTES: list[dict[str, Any]] = [
    {"path": "/accounts/{id:int}/*", "guard": "acct:{id}"},
    {"path": "/search/*", "methods": [], "reads": ["GET", "POST"]},
    {"path": "/jobs/{job}", "methods": ["GET", "POST"], "guard": "job:{job}"},
    {"path": "/items/{id:uuid}", "guard": "item:{id}"},
    {"path": "/health", "methods": []},
    {"path": "/", "guard": "root"},
]


def settings(**more: Any) -> UpstreamSettings:
    found = ResourceSettings.of("api", {"url": "http://127.0.0.1:9000", **FENCE, **more})
    assert isinstance(found, UpstreamSettings)
    return found


def lock_key(path: str, **more: Any) -> str:
    return settings(**more).service_routes().match([segment for segment in path.split("/") if segment]).lock_key


def test_the_first_rule_whose_path_fits_decides() -> None:
    assert lock_key("/accounts/7", routes=ROUTES) == lock_key("/accounts/7/orders/9", routes=ROUTES) == "acct:7"
    assert lock_key("/jobs/x", routes=ROUTES) == "job:x"
    assert lock_key("/search/a/b", routes=ROUTES) == "api:search/a/b"
    assert lock_key("/", routes=ROUTES) == "root"
    first: list[dict[str, Any]] = [{"path": "/a/*", "guard": "all"}, {"path": "/a/{b}", "guard": "one:{b}"}]
    assert lock_key("/a/b", routes=first) == "all"
    assert lock_key("/a/b", routes=first[::-1]) == "one:b"


def test_without_rules_the_whole_path_is_the_key() -> None:
    assert lock_key("/a/b/c") == "api:a/b/c"
    assert lock_key("/a", guard="job:rebuild") == lock_key("/b", guard="job:rebuild") == "job:rebuild"


@pytest.mark.parametrize("path", ["/jobs", "/jobs/x/y", "/other", "/Accounts/7", "/health/x", "/accounts"])
def test_a_path_that_no_rule_fits_is_refused(path: str) -> None:
    with pytest.raises(NotFound):
        lock_key(path, routes=ROUTES)


@pytest.mark.parametrize(
    "path", ["/accounts/007", "/accounts/-7", "/accounts/+7", "/accounts/٣", "/accounts/7.0", "/accounts/x/y",
             "/items/6BA7B810-9DAD-11D1-80B4-00C04FD430C8", "/items/6ba7b8109dad11d180b400c04fd430c8"]
)  # fmt: skip
def test_another_spelling_of_a_number_or_a_uuid_is_not_another_lock(path: str) -> None:
    with pytest.raises(InvalidInput):
        lock_key(path, routes=ROUTES)


@pytest.mark.parametrize(
    "route",
    [
        {"path": "accounts"}, {"path": "/a//b"}, {"path": "/a/../b"}, {"path": "/a/*/b"}, {"path": "/a*"},
        {"path": "/{a}{b}"}, {"path": "/x{a}"}, {"path": "/{a}/{a}"}, {"path": "/{key}"}, {"path": "/{a:float}"},
        {"path": "/a b"}, {"path": "/a%2Fb"}, {"path": "/a;b"}, {"path": "/a", "guard": "x:{id}"},
        {"path": "/a", "methods": ["put"]}, {"path": "/a", "methods": ["CONNECT"]}, {"path": "/a", "reads": ["PUT"]},
        {"path": "/a", "method": ["PUT"]}, {"guard": "x"}, {"path": 7}, {"path": "/a", "guard": "x:{"},
    ],
)  # fmt: skip
def test_a_rule_that_can_not_be_meant_is_refused_at_the_start(route: dict[str, Any]) -> None:
    with pytest.raises(UnsafeConfiguration):
        settings(routes=[{"path": "/fine"}, route])


@pytest.mark.parametrize(
    "more",
    [
        {"fence": None}, {"fence": ""}, {"total_timeout": "0s"}, {"drain_timeout": -1}, {"idle_timeout": "2h"},
        {"max_connections": 0}, {"max_answer_bytes": 0}, {"upstream_claims": True}, {"routes": [{"path": "/"}] * 300},
        {"guard": "acct:{id}"}, {"table": "x"},
    ],
)  # fmt: skip
def test_settings_that_can_not_be_meant_are_refused_at_the_start(more: dict[str, Any]) -> None:
    with pytest.raises(UnsafeConfiguration):
        settings(**more)


@pytest.mark.parametrize(
    "fence", ["sqlite://", "sqlite:///:memory:", "redis://x", "nonsense", "sqlite:///f?mode=memory"]
)
def test_a_fence_that_would_forget_is_refused(fence: str) -> None:
    with pytest.raises(UnsafeConfiguration):
        settings(fence=fence).build()


@pytest.mark.parametrize(
    "url",
    [
        "http://good@evil", "http://user:secret@host", "http://host/a?b", "http://host/#a", "http://host?",
        "http://host/..", "http://host/a/../b", "http://host/a%2e", "http://host/a;b", "http://host//a", "http://:80",
        "http://", "http:///path", "http://host:0", "http://host:99999", "http://host:x", "http://ho st",
        "http://[::1", "http://host\\evil", "http://höst", "http://host/a b",
    ],
)  # fmt: skip
def test_an_address_that_can_be_read_in_two_ways_is_refused_and_no_secret_is_told(url: str) -> None:
    with pytest.raises(UnsafeConfiguration) as refused:
        settings(url=url)
    assert "secret" not in refused.value.detail


def test_an_address_of_ipv6_and_one_with_a_base() -> None:
    six = Address.parse("api", "http://[::1]:9000/base/")
    assert (six.host, six.port, six.base, six.authority) == ("::1", 9000, b"/base", b"[::1]:9000")
    assert Address.parse("api", "https://host").authority == b"host"
    assert Address.parse("api", "https://host").port == 443


@pytest.mark.parametrize(
    ("base", "below", "target"),
    [
        ("/base", b"", b"/base"),
        ("/base/", b"", b"/base"),
        ("/base", b"/", b"/base/"),
        ("/base", b"?a=/b", b"/base?a=/b"),
        ("/base", b"/7", b"/base/7"),
        ("", b"", b"/"),
        ("/", b"/", b"/"),
        ("", b"?a", b"/?a"),
        ("", b"/7/", b"/7/"),
    ],
)
def test_the_base_is_a_path_of_the_service_too(base: str, below: bytes, target: bytes) -> None:
    assert Address.parse("api", f"http://host{base}").target(below) == target


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    service = PlainService()
    routes = [{**route, "path": "/echo" + route["path"]} for route in ROUTES]
    gateway = start_gateway(tmp_path_factory.mktemp("routes"), {"api": {"url": service.url, "routes": routes}})
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=30, trust_env=False) as client:
        yield client
    gateway.kill()
    service.kill()


def test_rules_say_which_methods_write_and_which_are_not_passed_on(http: httpx.Client) -> None:
    def status(method: str, path: str, token: str | None = None) -> int:
        headers = {} if token is None else {"Fencing-Token": token}
        return http.request(method, f"/resources/api/echo/{path}", headers=headers).status_code

    assert status("GET", "accounts/1") == 200
    assert status("PUT", "accounts/1") == 428
    assert status("PUT", "accounts/1", "7") == 200
    assert status("POST", "search/x") == 200
    assert status("PUT", "search/x", "7") == 405
    assert status("GET", "jobs/x") == 428
    assert status("GET", "jobs/x", "7") == 200
    assert status("DELETE", "jobs/x", "7") == 405
    assert status("DELETE", "health", "7") == 405
    assert status("GET", "health/") == 200
    assert status("GET", "elsewhere") == 404
    assert status("PUT", "accounts/007", "7") == 422


def test_a_path_without_a_rule_has_no_lock(http: httpx.Client) -> None:
    for area in ("resources", "fences"):
        told = http.get(f"/{area}/api/elsewhere").json()
        assert told["error"] == "NOT_FOUND"
        assert "lockKey" not in told


def test_the_base_of_a_service_is_passed_on_as_it_was_asked_for(tmp_path: Path) -> None:
    service = PlainService()
    gateway = start_gateway(tmp_path, {"api": {"url": f"{service.url}/echo"}})
    try:
        asked = {
            path: httpx.post(f"{gateway.url}/v1/resources/api{path}", headers={"Fencing-Token": "7"}, trust_env=False)
            for path in ("", "/", "?a=b", "/?a=b")
        }
    finally:
        gateway.kill()
        service.kill()
    told = {path: (answer.json()["path"], answer.json()["query"]) for path, answer in asked.items()}
    assert told == {"": ("/echo", ""), "/": ("/echo/", ""), "?a=b": ("/echo", "a=b"), "/?a=b": ("/echo/", "a=b")}


def test_one_lock_guards_all_that_its_rule_names(http: httpx.Client) -> None:
    def put(path: str, token: str, **more: str) -> httpx.Response:
        return http.put(f"/resources/api/echo/{path}", headers={"Fencing-Token": token, **more})

    told = put("accounts/5/orders/1", "8", **{"Fencing-Lock": "acct:5"}).json()
    assert ["fencing-lock", "acct:5"] in told["headers"]
    stale = put("accounts/5/orders/2/", "7")
    assert (stale.status_code, stale.json()["error"]) == (412, "STALE_TOKEN")
    assert stale.json()["lockKey"] == "acct:5"
    assert put("accounts/6", "7").status_code == 200
    assert put("accounts/5", "9", **{"Fencing-Lock": "acct:6"}).status_code == 403
    assert http.post("/resources/api/echo/accounts/5/claim", headers={"Fencing-Token": "10"}).status_code == 200
    assert put("accounts/5/orders/3", "9").status_code == 412
    fence = http.get("/fences/api/echo/accounts/5/whatever").json()
    assert (fence["lockKey"], fence["highestToken"]) == ("acct:5", "10")


def test_a_claim_is_passed_on_with_the_callers_credentials(tmp_path: Path) -> None:
    service = PlainService()
    checks = {"url": service.url, "upstream_checks": True, "upstream_claims": True}
    gateway = start_gateway(tmp_path, {"api": checks})
    url = f"{gateway.url}/v1/resources/api/private/x/claim"
    try:
        unknown, known = (
            httpx.post(url, headers={"Fencing-Token": "7", **more}, trust_env=False)
            for more in ({}, {"Authorization": "Bearer t"})
        )
    finally:
        gateway.kill()
        service.kill()
    assert unknown.status_code == 401
    assert (known.status_code, known.json()["highestToken"]) == (200, "7")


def test_a_fenced_read_claims_and_a_stale_one_is_refused(http: httpx.Client) -> None:
    url = "/resources/api/echo/accounts/77"
    assert http.get(url, headers={"Fencing-Token": "5"}).headers["fencing-token-highest"] == "5"
    assert http.put(url, headers={"Fencing-Token": "4"}).status_code == 412
    assert http.get(url, headers={"Fencing-Token": "4"}).status_code == 412
    assert http.get(url).headers["fencing-token-highest"] == "5"


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
        [(b"host", b"a"), (b"host", b"b")],
        [(b"x y", b"1")],
        [(b"x", b"a\r\nb: c")],
        [(b"upgrade", b"websocket")],
        [(b"expect", b"200-ok")],
        [(b"via", b"1.1 fencegate")] * 4,
        [(b"x", b"1")] * 257,
        [(b"x", b"1" * 70_000)],
    ],
)
def test_headers_that_can_not_be_passed_on_are_refused_whatever_a_server_before_let_through(
    headers: list[tuple[bytes, bytes]],
) -> None:
    with pytest.raises((InvalidInput, TooLarge)):
        rules.check(headers)
