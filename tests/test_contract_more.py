"""What a stranger tries next: answers sent back as they came, text that is none, and probes that ask for heads."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from fencegate.core.errors import InvalidInput
from fencegate.web import Request

_names = iter(range(10**9))


@pytest.fixture
def key() -> str:
    return f"more:{next(_names)}"


def post(http: httpx.Client, path: str, **body: Any) -> httpx.Response:
    return http.post(f"/v1/{path}", json=body)


# --- several locks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_the_grants_of_several_locks_can_be_sent_back_as_they_came(http: httpx.Client, key: str, verb: str) -> None:
    session = post(http, "sessions").json()["sessionId"] if verb == "release" else None
    locks = [{"lockKey": f"{key}/a", "mode": "shared"}, {"lockKey": f"{key}/b"}]
    grants = post(http, "multi/acquire", locks=locks, sessionId=session).json()["locks"]
    answer = post(http, f"multi/{verb}", locks=grants)
    assert answer.status_code == 200, answer.text
    assert [lock["lockKey"] for lock in answer.json()["locks"]] == [lock["lockKey"] for lock in locks]
    other = post(http, f"multi/{verb}", locks=[{**grants[0], "ownerId": "another"}])
    assert (other.status_code, other.json()["error"]) == (403, "NOT_LOCK_OWNER")
    misspelt = post(http, f"multi/{verb}", locks=[{**grants[0], "lockTokn": "x"}])
    assert (misspelt.status_code, misspelt.json()["error"]) == (422, "INVALID_LOCKS")


def test_as_many_as_may_be_asked_for_at_once_are_had_at_once(http: httpx.Client, key: str) -> None:
    locks = [{"lockKey": f"{key}/{number}/part"} for number in range(64)]
    asked: dict[str, Any] = {"locks": locks, "requestId": key, "ownerId": "me"}
    grants = post(http, "multi/acquire", **asked).json()["locks"]
    assert [grant["lockKey"] for grant in grants] == [lock["lockKey"] for lock in locks]
    token = grants[0]["lockToken"]
    assert post(http, "multi/acquire", **asked).json()["locks"][63]["lockToken"] == token
    assert len(post(http, "multi/renew", locks=locks, lockToken=token).json()["locks"]) == 64
    for _ in range(2):
        assert post(http, "multi/release", locks=locks, lockToken=token).json()["status"] == "RELEASED"
    assert post(http, "multi/acquire", **asked).json()["error"] == "LOCK_EXPIRED"
    session = post(http, "sessions").json()["sessionId"]
    asked = {"locks": locks, "requestId": f"{key} again", "sessionId": session}
    again = post(http, "multi/acquire", **asked).json()["locks"]
    assert int(again[0]["fencingToken"]) > int(grants[0]["fencingToken"])


# --- hostile bodies --------------------------------------------------------------------------------------------------

HALF = "\ud800"  # half of a pair: JSON can spell it, and no text holds it
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("locks/{key}/acquire", {"metadata": {"a": HALF}}, "metadata"),
    ("locks/{key}/acquire", {"metadata": {"a": [{HALF: 1}]}}, "metadata"),
    ("locks/{key}/acquire", {"mode": HALF}, "mode"),
    ("locks/{key}/acquire", {"sessionId": HALF}, "sessionId"),
    ("locks/{key}/acquire", {HALF: 1}, "body"),
    ("locks/{key}/renew", {"lockToken": HALF}, "lockToken"),
    ("locks/{key}/release", {"lockToken": HALF}, "lockToken"),
    ("locks/{key}/force-release", {"reason": HALF}, "reason"),
    ("acquire", {"lockKey": HALF}, "lockKey"),
    ("multi/acquire", {"locks": [{"lockKey": HALF}]}, "locks"),
    ("multi/acquire", {"locks": [{"lockKey": "{key}"}], "metadata": {"a": HALF}}, "metadata"),
    ("multi/renew", {"locks": [{"lockKey": "{key}"}], "lockToken": HALF}, "lockToken"),
    ("multi/release", {"locks": [{"lockKey": "{key}", "lockToken": HALF}]}, "locks"),
    ("sessions", {"ownerId": HALF}, "ownerId"),
    ("sessions/0123456789abcdef/renew", {"ownerId": HALF}, "ownerId"),
]


@pytest.mark.parametrize(("path", "body", "field"), CALLS)
def test_text_that_is_none_is_refused_by_name_at_every_call(
    http: httpx.Client, key: str, path: str, body: dict[str, Any], field: str
) -> None:
    content = json.dumps(body).replace("{key}", key)
    answer = http.post(f"/v1/{path.replace('{key}', key)}", content=content)
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert answer.json()["error"].startswith("INVALID_")
    assert http.get(f"/v1/locks/{key}").json()["error"] == "LOCK_FREE"


@pytest.mark.parametrize("depth", [33, 900, 940, 960, 966, 967, 968, 969, 970, 971])
def test_metadata_that_can_be_written_and_not_read_again_is_refused(http: httpx.Client, key: str, depth: int) -> None:
    """Of a record that nobody can decode any more, the lock is lost for good, and so is every list that shows it."""
    nested = '{"a":' + "[" * depth + "]" * depth + "}"
    for path, locks in ((f"locks/{key}/acquire", ""), ("multi/acquire", f'"locks": [{{"lockKey": "{key}"}}], ')):
        answer = http.post(f"/v1/{path}", content=f'{{{locks}"metadata": {nested}}}')
        assert answer.status_code == 422, answer.text
        assert answer.json()["field"] in ("metadata", "body")
    assert http.get("/v1/locks", params={"prefix": key}).json()["locks"] == []


def test_metadata_comes_back_as_it_was_sent(http: httpx.Client, key: str) -> None:
    sent = {"a": [1, 1.5, None, True, "\U0001f600"], "b": {"": {"c": []}}, "big": 10**30, "small": 1e-300}
    assert post(http, f"locks/{key}/acquire", metadata=sent).status_code == 200
    assert http.get(f"/v1/locks/{key}").json()["holders"][0]["metadata"] == sent


def test_a_number_beyond_all_numbers_is_refused_and_not_kept_as_null(http: httpx.Client, key: str) -> None:
    for number in ("1e999", "-1e999"):
        answer = http.post(f"/v1/locks/{key}/acquire", content=f'{{"metadata": {{"a": {number}}}}}')
        assert (answer.status_code, answer.json()["error"]) == (422, "INVALID_BODY"), answer.text


@pytest.mark.parametrize("came", [[], [{"type": "http.request", "body": b'{"lo', "more_body": True}]])
async def test_a_body_that_does_not_come_is_not_waited_for_without_end(came: list[dict[str, Any]]) -> None:
    parts = iter(came)

    async def receive() -> dict[str, Any]:
        for part in parts:
            return part
        await asyncio.Event().wait()
        raise AssertionError("nothing comes")

    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
    with pytest.raises(InvalidInput, match="body: did not arrive within"):
        await asyncio.wait_for(request.body(within_s=0.01), 30)


# --- heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/docs", "/openapi.json", "/v1/locks", "/v1/watch"])
def test_a_probe_that_asks_for_the_head_only_gets_it(http: httpx.Client, path: str) -> None:
    answer = http.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


def test_heads_are_not_in_the_documentation_twice(http: httpx.Client) -> None:
    assert "head" not in http.get("/openapi.json").json()["paths"]["/livez"]


# --- the documentation -----------------------------------------------------------------------------------------------


def test_every_answer_is_as_the_documentation_says_and_so_is_every_refusal(http: httpx.Client, key: str) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]

    def check(found: Any, schema: dict[str, Any]) -> None:
        schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if isinstance(found, dict) and "properties" in schema:
            assert found.keys() <= schema["properties"].keys()
            for name, value in found.items():
                check(value, schema["properties"][name])
        elif isinstance(found, list):
            for item in found:
                check(item, schema["items"])

    def ask(method: str, path: str, status: int = 200, **body: Any) -> Any:
        template = path.replace(key, "{lockKey}").replace(session, "{sessionId}")
        answer = http.request(method, f"/v1/{path}", json=body if method == "POST" else None)
        assert answer.status_code == status, answer.text
        told = document["paths"][f"/v1/{template}"][method.lower()]["responses"][str(status)]
        if status == 200:
            check(answer.json(), told["content"][answer.headers["content-type"]]["schema"])
        else:
            assert answer.json()["error"] in told["description"]
        return answer.json()

    session = "(none yet)"
    session = ask("POST", "sessions")["sessionId"]
    grant = ask("POST", f"locks/{key}/acquire", hierarchical=True, ttlMillis=60_000, maxHoldMillis=60_000)
    ask("POST", f"locks/{key}/acquire", 409)
    ask("POST", f"locks/{key}/acquire", 403, sessionId=session, ownerId="another")
    ask("POST", f"locks/{key}/acquire", 404, sessionId="none")
    ask("POST", f"locks/{key}/renew", 409, lockToken=grant["lockToken"])
    ask("POST", f"locks/{key}/force-release", reason="r", graceMillis=60_000)
    ask("GET", f"locks/{key}")
    ask("POST", "status", lockKey=key)
    ask("POST", "release", lockKey=key, lockToken=grant["lockToken"])
    ask("POST", "force-release", 404, lockKey=key, reason="r")
    permit = ask("POST", "acquire", lockKey=key, limit=2, sessionId=session)
    ask("GET", "locks")
    ask("POST", f"locks/{key}/force-release", reason="r", graceMillis=60_000)
    assert ask("POST", f"sessions/{session}/renew")["revoked"]
    ask("POST", f"sessions/{session}/renew", 403, ownerId="another")
    ask("GET", f"sessions/{session}")
    ask("POST", f"locks/{key}/release", lockToken=permit["lockToken"])
    locks = ask("POST", "multi/acquire", locks=[{"lockKey": f"{key}/m"}])["locks"]
    ask("POST", "multi/renew", locks=locks)
    ask("POST", "multi/release", locks=locks)
    ask("DELETE", f"sessions/{session}")
    ask("GET", f"sessions/{session}", 409)
