"""The path items of the lock calls, made from the structures that check their bodies."""

from typing import Any

import msgspec

from fencegate_lockservice.bodies import (
    AcquireBody,
    ForceReleaseBody,
    MultiAcquireBody,
    MultiReleaseBody,
    MultiRenewBody,
    OpenSessionBody,
    ReleaseBody,
    RenewBody,
    RenewSessionBody,
    StatusBody,
)

Item = dict[str, Any]

_REF = "#/components/schemas/{name}"
_PROBLEM = {"content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}}}
_KEY = {
    "name": "lockKey",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 1024},
    "description": "The name that is locked. It may hold ':' and '/'; '%2F' belongs to it.",
}
_STRING = {"type": "string"}
_MILLIS = {"type": "integer"}
_TOKEN = {"type": "string", "pattern": "^[1-9][0-9]{0,18}$", "description": "The fencing token, as a decimal string"}


def _object(**properties: Item) -> Item:
    return {"type": "object", "properties": properties}


_REVOKED: Item = {
    **_object(lockKey=_STRING, fencingToken=_TOKEN, reason=_STRING, takenAt=_MILLIS, remainingMillis=_MILLIS),
    "description": "Let go: the lock is taken away at `takenAt`",
}
_HIERARCHICAL: Item = {"type": "boolean", "description": "Only when it is so: everything below is locked too"}
_SESSION_ID = {"name": "sessionId", "in": "path", "required": True, "schema": _STRING}

_ANSWERS: dict[str, Item] = {
    "Grant": _object(
        lockKey=_STRING,
        lockToken=_STRING,
        fencingToken=_TOKEN,
        sequencer={"type": ["string", "null"]},
        ownerId=_STRING,
        mode=_STRING,
        slot={"type": "integer", "description": "Of a permit"},
        fence={"type": "string", "description": "Of a permit: what its writes are fenced by"},
        hierarchical=_HIERARCHICAL,
        sessionId=_STRING,
        expiresAt=_MILLIS,
        remainingMillis=_MILLIS,
        ttlMillis=_MILLIS,
    ),
    "Renewal": _object(
        lockKey=_STRING,
        fencingToken=_TOKEN,
        sequencer={"type": ["string", "null"]},
        expiresAt=_MILLIS,
        remainingMillis=_MILLIS,
        revoked=_REVOKED,
    ),
    "Grants": _object(locks={"type": "array", "items": {"$ref": _REF.format(name="Grant")}}),
    "Renewals": _object(locks={"type": "array", "items": {"$ref": _REF.format(name="Renewal")}}),
    "AllReleased": _object(status=_STRING, locks={"type": "array", "items": {"$ref": _REF.format(name="Released")}}),
    "Session": _object(
        sessionId=_STRING,
        ownerId=_STRING,
        ttlMillis=_MILLIS,
        expiresAt=_MILLIS,
        remainingMillis=_MILLIS,
        locks={"type": "integer", "description": "How many it holds or waits for; only when looked at"},
        revoked={"type": "array", "items": _REVOKED, "description": "Only when renewed"},
    ),
    "SessionEnded": _object(status=_STRING, sessionId=_STRING),
    "Released": _object(status=_STRING, lockKey=_STRING, reentrancyCount={"type": "integer"}),
    "ForceReleased": _object(status=_STRING, lockKey=_STRING, takenAt=_MILLIS),
    "Lock": _object(
        lockKey=_STRING,
        locked={"type": "boolean"},
        ownerId=_STRING,
        mode=_STRING,
        hierarchical=_HIERARCHICAL,
        fencingToken=_TOKEN,
        expiresAt=_MILLIS,
        remainingMillis=_MILLIS,
        reentrancyCount={"type": "integer"},
        holders={"type": "array", "items": {"$ref": _REF.format(name="Holder")}},
        waiters={"type": "integer"},
        revoked=_REVOKED,
    ),
    "Holder": _object(
        ownerId=_STRING,
        mode=_STRING,
        hierarchical=_HIERARCHICAL,
        slot={"type": "integer", "description": "Of a permit"},
        fence=_STRING,
        fencingToken=_TOKEN,
        expiresAt=_MILLIS,
        metadata={"type": ["object", "null"]},
    ),
    "Locks": _object(
        locks={"type": "array", "items": {"$ref": _REF.format(name="Lock")}}, nextCursor={"type": ["string", "null"]}
    ),
    "Problem": _object(type=_STRING, title=_STRING, status={"type": "integer"}, detail=_STRING, error=_STRING),
}

_NOT_GRANTED = {
    "403": "NOT_LOCK_OWNER: the session is another's",
    "404": "SESSION_NOT_FOUND",
    "409": "LOCK_ALREADY_HELD, LOCK_EXPIRED, REQUEST_ID_REUSED, SESSION_EXPIRED",
    "429": "TOO_MANY_WAITERS",
    "501": "NOT_SUPPORTED_BY_STORE",
}
_NOT_RENEWED = {"403": "NOT_LOCK_OWNER", "409": "LOCK_EXPIRED, MAX_HOLD_REACHED"}
_CALLS: tuple[tuple[str, type, str, str, dict[str, str]], ...] = (
    (
        "acquire",
        AcquireBody,
        "Grant",
        "Take the lock, at once or after waiting for it",
        _NOT_GRANTED,
    ),
    ("renew", RenewBody, "Renewal", "Lengthen the lease", _NOT_RENEWED),
    ("release", ReleaseBody, "Released", "Give the lock back", {"403": "NOT_LOCK_OWNER", "409": "LOCK_EXPIRED"}),
    ("force-release", ForceReleaseBody, "ForceReleased", "Take the lock away from its holder", {"404": "LOCK_FREE"}),
)


_MULTI: tuple[tuple[str, type, str, str, dict[str, str]], ...] = (
    (
        "acquire",
        MultiAcquireBody,
        "Grants",
        "Take all of these locks, or none",
        _NOT_GRANTED,
    ),
    (
        "renew",
        MultiRenewBody,
        "Renewals",
        "Lengthen them all, or none",
        _NOT_RENEWED,
    ),
    ("release", MultiReleaseBody, "AllReleased", "Give them back", {"403": "NOT_LOCK_OWNER", "409": "LOCK_EXPIRED"}),
)
_SESSION_GONE = {"404": "SESSION_NOT_FOUND", "409": "SESSION_EXPIRED"}


def components() -> dict[str, Any]:
    bodies = (*(body for _, body, *_ in (*_CALLS, *_MULTI)), OpenSessionBody, RenewSessionBody)
    _, schemas = msgspec.json.schema_components(bodies, ref_template=_REF)
    return {**schemas, **_ANSWERS}


def paths() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for verb, body, answer, summary, refusals in _CALLS:
        found[f"/v1/locks/{{lockKey}}/{verb}"] = {
            "parameters": [_KEY],
            "post": _with_body(summary, body, answer, refusals),
        }
        found[f"/v1/{verb}"] = {"post": _with_key(_with_body(summary, body, answer, refusals), body)}
    for verb, body, answer, summary, refusals in _MULTI:
        found[f"/v1/multi/{verb}"] = {"post": _with_body(summary, body, answer, refusals)}
    found["/v1/sessions"] = {
        "post": _with_body("Open a session", OpenSessionBody, "Session", {"501": "NOT_SUPPORTED_BY_STORE"})
    }
    found["/v1/sessions/{sessionId}/renew"] = {
        "parameters": [_SESSION_ID],
        "post": _with_body(
            "Keep all locks of a session alive", RenewSessionBody, "Session", {"403": "NOT_LOCK_OWNER", **_SESSION_GONE}
        ),
    }
    found["/v1/sessions/{sessionId}"] = {
        "parameters": [_SESSION_ID],
        "get": _call("A session as it is", "Session", _SESSION_GONE),
        "delete": _call("End a session: all its locks go", "SessionEnded", _SESSION_GONE),
    }
    status = _call("Who holds the lock", "Lock", {"404": "LOCK_FREE"})
    found["/v1/locks/{lockKey}"] = {"parameters": [_KEY], "get": status}
    found["/v1/status"] = {"post": _with_key(status, StatusBody)}
    listing = _call("The locks that are held", "Locks", {"422": "INVALID_…: names the field"})
    listing["parameters"] = [
        {"name": name, "in": "query", "schema": {"type": "integer" if name == "limit" else "string"}}
        for name in ("namespace", "prefix", "limit", "cursor")
    ]
    found["/v1/locks"] = {"get": listing}
    return found


def _with_body(summary: str, body: type, answer: str, refusals: dict[str, str]) -> Item:
    call = _call(summary, answer, {**refusals, "413": "TOO_LARGE", "422": "INVALID_…: names the field"})
    call["requestBody"] = {"content": {"application/json": {"schema": {"$ref": _REF.format(name=body.__name__)}}}}
    return call


def _with_key(call: Item, body: type) -> Item:
    """The same call with the lock key in its body, for proxies that rewrite paths."""
    _, schemas = msgspec.json.schema_components((body,), ref_template=_REF)
    schema = schemas[body.__name__]
    keyed = {
        **schema,
        "title": f"{schema['title']}WithKey",
        "properties": {"lockKey": _KEY["schema"], **schema["properties"]},
        "required": ["lockKey", *schema.get("required", [])],
    }
    content = {"required": True, "content": {"application/json": {"schema": keyed}}}
    return {**call, "summary": f"{call['summary']} (the lock key in the body)", "requestBody": content}


def _call(summary: str, answer: str, refusals: dict[str, str]) -> Item:
    responses: dict[str, Any] = {
        "200": {
            "description": "Done",
            "content": {"application/json": {"schema": {"$ref": _REF.format(name=answer)}}},
        }
    }
    known = {**refusals, "503": "STORE_UNAVAILABLE, OUTCOME_UNKNOWN, SHUTTING_DOWN"}
    responses |= {status: {"description": codes, **_PROBLEM} for status, codes in known.items()}
    return {"tags": ["locks"], "summary": summary, "responses": responses}
