"""What reaches the service is one whole request, to the configured address only, and read there as it is here."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.resources.gateways import raw, start_gateway
from tests.resources.plain_service import PlainService
from tests.servers import Server

ECHO = b"/v1/resources/api/echo/x"


@pytest.fixture(scope="module")
def service() -> Iterator[PlainService]:
    running = PlainService()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def gateway(service: PlainService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("smuggling")
    running = start_gateway(folder, {"api": {"url": service.url, "max_bytes": 1_000_000}})
    yield running
    assert "Traceback" not in (errors := (folder / "gateway.err").read_text()), errors
    running.kill()


@pytest.fixture
def http(gateway: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30) as client:
        yield client


def ask(gateway: Server, *lines: bytes, body: bytes = b"", first: bytes = b"PUT " + ECHO) -> tuple[int, Any]:
    """One request of exactly these bytes; the status, and the JSON that came with it."""
    head = b"\r\n".join([first + b" HTTP/1.1", b"Host: gateway", b"Connection: close", b"Fencing-Token: 7", *lines])
    answer = raw(gateway, head + b"\r\n\r\n" + body)
    status, _, rest = answer.partition(b"\r\n")
    content = rest.partition(b"\r\n\r\n")[2]
    return int(status.split()[1]), json.loads(content) if content.startswith(b"{") else content


def applied(service: PlainService) -> Any:
    return httpx.get(f"{service.url}/_applied", trust_env=False, verify=False).json()  # certificates are slow to read


# --- where a message ends --------------------------------------------------------------------------------------------

SMUGGLED = b"DELETE /v1/resources/api/kv/victim HTTP/1.1\r\nHost: x\r\nFencing-Token: 9\r\n\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 3", b"Content-Length: 5"],
        [b"Content-Length: 3", b"Content-Length: 3"],
        [b"Content-Length: 3, 5"],
        [b"Content-Length: +3"],
        [b"Content-Length: 0x3"],
        [b"Content-Length: -3"],
        [b"Content-Length : 3"],
        [b"Content-Length: 3", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Content-Length: 3"],
        [b"Transfer-Encoding: identity", b"Content-Length: 3"],
        [b"Transfer-Encoding: chunked, identity"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: xchunked"],
        [b"Transfer-Encoding: \x0bchunked"],
        [b"Transfer-Encoding : chunked"],
        [b"X: a\nTransfer-Encoding: chunked", b"Content-Length: 3"],
    ],
)
def test_a_request_whose_length_can_be_read_in_two_ways_is_refused(
    gateway: Server, service: PlainService, lines: list[bytes]
) -> None:
    before = applied(service)
    status, _ = ask(gateway, *lines, body=b"3\r\nabc\r\n0\r\n\r\n" + SMUGGLED)
    assert 400 <= status < 500
    assert applied(service) == before


def test_a_chunked_body_goes_on_with_one_length(gateway: Server) -> None:
    status, told = ask(gateway, b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\n\r\n")
    names = [name for name, _ in told["headers"]]
    assert (status, told["body"]) == (200, "abcde")
    assert ["content-length", "5"] in told["headers"]
    assert "transfer-encoding" not in names


def test_a_trailer_never_becomes_a_header(gateway: Server) -> None:
    trailer = b"0\r\nX-Late: yes\r\nFencing-Lock: other\r\nFencing-Token: 99\r\n\r\n"
    status, told = ask(gateway, b"Trailer: X-Late", b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n" + trailer)
    assert (status, told["body"]) == (200, "abc")
    assert not {"x-late", "trailer"} & {name for name, _ in told["headers"]}
    assert ["fencing-token", "7"] in told["headers"]


def test_a_body_that_breaks_off_never_reaches_the_service(gateway: Server, service: PlainService) -> None:
    port = int(gateway.url.rpartition(":")[2])
    head = b"PUT /v1/resources/api/kv/half HTTP/1.1\r\nHost: x\r\nFencing-Token: 7\r\nContent-Length: 100\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head + b"only a part")
    ask(gateway)  # the gateway has seen the end of the first by now, or soon: it can't do anything with it either way
    assert not [line for line in applied(service) if line[1] == "/kv/half"]


# --- what belongs to one connection ----------------------------------------------------------------------------------


def test_headers_of_the_connection_end_at_the_gateway(gateway: Server) -> None:
    hop = [b"Keep-Alive: 5", b"TE: trailers", b"Proxy-Authorization: x", b"Proxy-Connection: close", b"Proxy-X: 1"]
    hop += [b"X-Named: 1", b"Proxy: http://evil"]  # to a CGI program that is HTTP_PROXY, where its own requests go
    _, told = ask(gateway, *hop, b"Connection: x-named, keep-alive", b"X-Kept: 1", b"Expect: 100-continue")
    names = {name for name, _ in told["headers"]}
    assert "x-kept" in names
    assert not names & {
        "keep-alive",
        "te",
        "proxy-authorization",
        "proxy-connection",
        "proxy-x",
        "proxy",
        "x-named",
        "connection",
        "expect",
    }


def test_headers_of_the_services_connection_end_at_the_gateway(http: httpx.Client) -> None:
    answer = http.get("/v1/resources/api/hop")
    assert answer.headers["x-kept"] == "1"
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert len(answer.headers.get_list("date")) == 1
    assert answer.headers.get_list("fencing-token-highest") == ["0"]  # the mark of the gateway's fence
    assert not {"x-secret", "keep-alive", "proxy-x"} & set(answer.headers)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_answer_without_a_body_keeps_the_type_that_it_has(http: httpx.Client, method: str) -> None:
    assert http.request(method, "/v1/resources/api/empty").headers.get_list("content-type") == ["text/csv"]


def test_a_token_that_connection_names_is_refused(gateway: Server) -> None:
    assert ask(gateway, b"Connection: Fencing-Token")[0] == 400


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"Upgrade: websocket", 422), (b"Upgrade: foo/1, h2c", 422), (b"Upgrade: h2c", 200), (b"Expect: 200-ok", 422)],
)
def test_a_tunnel_is_refused_and_another_version_of_http_is_not_taken_up(
    gateway: Server, line: bytes, status: int
) -> None:
    assert ask(gateway, b"Connection: Upgrade", line, first=b"GET " + ECHO)[0] == status


@pytest.mark.parametrize("first", [b"TRACE " + ECHO, b"CONNECT 127.0.0.1:1", b"FOO " + ECHO, b"PROPFIND " + ECHO])
def test_methods_that_no_rule_names_are_refused(gateway: Server, first: bytes) -> None:
    assert 400 <= ask(gateway, first=first)[0] < 500


# --- who the caller is, and which token it has -----------------------------------------------------------------------


def test_the_service_is_told_by_the_gateway_alone_who_calls_with_which_token(gateway: Server) -> None:
    spoofed = [
        b"Fencing_Token: 99", b"FENCING-LOCK: api:echo/x", b"Fencing_Lock: x", b"Fencing-Token-Highest: 1",
        b"X-Forwarded-For: 1.2.3.4", b"X_Forwarded_For: 1.2.3.4", b"Forwarded: for=1.2.3.4", b"X-Real-IP: 1.2.3.4",
        b"X-Forwarded-Proto: https", b"X-Forwarded-Host: evil", b"Cookie: a=b", b"Authorization: Bearer t",
        b"X-HTTP-Method-Override: DELETE", b"X-Original-URL: /admin", b"X-Rewrite-URL: /admin",
    ]  # fmt: skip
    status, told = ask(gateway, *spoofed)
    assert status == 200
    headers = [(name, value) for name, value in told["headers"] if name not in ("host", "content-length")]
    assert sorted(headers) == [
        ("authorization", "Bearer t"),
        ("cookie", "a=b"),
        ("fencing-lock", "api:echo/x"),
        ("fencing-token", "7"),
        ("via", "1.1 fencegate"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "gateway"),
        ("x-forwarded-prefix", "/v1/resources/api"),
        ("x-forwarded-proto", "http"),
    ]


def test_a_plain_read_brings_no_token_to_the_service(http: httpx.Client) -> None:
    told = http.get("/v1/resources/api/echo/x", headers={"Fencing-Lock": "whatever", "Fencing_Token": "9"}).json()
    assert not [name for name, _ in told["headers"] if name.startswith("fencing")]


# --- where a request can go ------------------------------------------------------------------------------------------


def test_the_target_and_the_host_of_a_request_can_not_choose_another_address(
    gateway: Server, service: PlainService
) -> None:
    for first in (b"PUT http://evil.example" + ECHO, b"PUT http://169.254.169.254:80" + ECHO):
        status, told = ask(gateway, first=first)
        assert status == 200
        assert ["host", f"127.0.0.1:{service.port}"] in told["headers"]
        assert told["path"] == "/echo/x"
    assert ask(gateway, b"Host: evil.example")[0] in (400, 422)  # a second one


def test_a_redirect_is_passed_on_and_never_followed(http: httpx.Client) -> None:
    answer = http.get("/v1/resources/api/redirect")
    assert answer.status_code == 302
    assert answer.headers["location"] == "http://169.254.169.254/latest/meta-data/"


@pytest.mark.parametrize(
    "path",
    [
        b"..", b"../x", b"%2e%2e", b"%2E%2e/x", b".%2e/x", b"%2e", b"a/../b", b"a/./b", b"..%2fadmin", b"a%2Fb",
        b"a%2f..%2fb",
        b"a%5Cb", b"%5c..%5c", b"a;x=1", b"..;/x", b"a%3Bx", b"%252e%252e", b"%252F", b"a//b", b"//evil.example/x",
        b"%00",
        b"a%0d%0aX: y", b"%0a", b"%ff", b"%c0%ae", b"a%", b"a%2", b"%zz", b"a#b", b"a" * 5000,
    ],
)  # fmt: skip
def test_a_path_that_two_servers_would_read_differently_is_refused(
    gateway: Server, service: PlainService, path: bytes
) -> None:
    before = applied(service)
    status, problem = ask(gateway, first=b"PUT /v1/resources/api/" + path)
    assert status in (400, 422)
    assert not isinstance(problem, dict) or problem["error"].startswith("INVALID_")
    assert applied(service) == before


@pytest.mark.parametrize(
    ("path", "spelt"),
    [
        (b"echo/good@evil", "/echo/good@evil"), (b"echo/%41%2D", "/echo/A-"), (b"echo/caf%C3%A9", "/echo/caf%C3%A9"),
        (b"echo/a%20b%25", "/echo/a%20b%25"), (b"echo/a/", "/echo/a/"), (b"echo/%3Fx=1", "/echo/%3Fx=1"),
        (b"echo/a%23b", "/echo/a%23b"), (b"echo/...", "/echo/..."),
    ],
)  # fmt: skip
def test_a_path_goes_on_spelt_in_one_way(gateway: Server, path: bytes, spelt: str) -> None:
    status, told = ask(gateway, first=b"PUT /v1/resources/api/" + path)
    assert (status, told["path"]) == (200, spelt)


def test_a_claim_of_the_services_own_is_reached_by_another_spelling(gateway: Server) -> None:
    assert ask(gateway, first=b"POST " + ECHO + b"/claim")[1]["lockKey"] == "api:echo/x"
    assert ask(gateway, first=b"POST " + ECHO + b"/clai%6D")[1]["path"] == "/echo/x/claim"


def test_a_query_goes_on_as_it_is(gateway: Server) -> None:
    _, told = ask(gateway, first=b"PUT " + ECHO + b"?a=%2F..&b=1;2&a=http://evil")
    assert told["query"] == "a=%2F..&b=1;2&a=http://evil"
    assert ask(gateway, first=b"PUT " + ECHO + b"?" + b"q" * 20_000)[0] in (400, 414, 422)


def test_a_chain_of_gateways_that_leads_back_is_cut(gateway: Server) -> None:
    assert ask(gateway, b"Via: 1.1 fencegate, 1.1 fencegate, 1.1 fencegate, 1.1 fencegate")[0] == 422
    status, told = ask(gateway, b"Via: 1.0 fred")
    assert (status, ["via", "1.0 fred, 1.1 fencegate"] in told["headers"]) == (200, True)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_bodies_and_headers_are_bounded(gateway: Server, service: PlainService) -> None:
    before = applied(service)
    put = b"PUT /v1/resources/api/kv/large"
    said, told = ask(gateway, b"Content-Length: 1000001", first=put)
    assert (said, told["maxBytes"]) == (413, 1_000_000)
    assert ask(gateway, *[b"X-%d: 1" % number for number in range(10_000)], first=put)[0] in (400, 413, 431)
    assert ask(gateway, b"X: " + b"x" * 70_000, first=put)[0] in (400, 413, 431)
    chunks = b"%x\r\n%b\r\n" % (600_000, b"x" * 600_000)
    unsaid, too = ask(gateway, b"Transfer-Encoding: chunked", first=put, body=chunks * 2 + b"0\r\n\r\n")
    assert (unsaid, too["maxBytes"], too["detail"]) == (413, 1_000_000, told["detail"])
    assert applied(service) == before


@pytest.mark.parametrize("token", ["", "-1", "0", "+5", "5.0", "1e3", "0x10", "007", "1_000", "9223372036854775808"])
def test_a_token_that_is_none_is_refused_and_nothing_is_sent(
    gateway: Server, service: PlainService, token: str
) -> None:
    before = applied(service)
    url, headers = f"{gateway.url}/v1/resources/api/kv/t", {"Fencing-Token": token}
    answer = httpx.put(url, headers=headers, trust_env=False, verify=False)
    assert answer.status_code in (400, 401)
    assert applied(service) == before


def test_the_gateway_goes_on_after_all_that(http: httpx.Client, tmp_path: Path) -> None:
    assert http.put("/v1/resources/api/kv/fine", content=b"x", headers={"Fencing-Token": "7"}).status_code == 201
    assert http.get("/readyz").status_code == 200
