"""The path items of the gateway's calls, written by hand: what /docs shows."""

from typing import Any, Final

Item = dict[str, Any]


def _header(name: str, description: str, *, required: bool = False) -> Item:
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": description,
        "schema": {"type": "string"},
    }


def _path(name: str, description: str) -> Item:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": {"type": "string"}}


def _query(name: str, description: str, schema: Item | None = None) -> Item:
    return {"name": name, "in": "query", "description": description, "schema": schema or {"type": "string"}}


_RESOURCE = _path("resource", "The name of a configured resource.")
_KEY = _path("key", "The key; it may hold `/`. The key columns of a table are segments, in the configured order.")
_TOKEN_TEXT = "The fencing token of your lease: 1 to 2^63-1 in plain digits."  # noqa: S105 - says what one is
_TOKEN = _header("Fencing-Token", _TOKEN_TEXT, required=True)
_READ_TOKEN = _header("Fencing-Token", f"{_TOKEN_TEXT} With it, the read claims the fence first.")
_LOCK = _header("Fencing-Lock", "The lock key that the token is of; refused when another one guards this key.")
_IF_MATCH = _header("If-Match", "Only if the value is still this one.")
_IF_NONE_MATCH = _header("If-None-Match", "`*`: only if there is none yet.")
_PREFER = _header("Prefer", "`return=representation` answers with the row as it is afterwards.")
_RANGE = _header("Range", "One range of an object's bytes.")

_HIGHEST = {
    "Fencing-Token-Highest": {
        "description": "The highest token that the fence has seen; 0 when it has seen none.",
        "schema": {"type": "string"},
    }
}
_PROBLEM = {"application/problem+json": {"schema": {"type": "object"}}}
_JSON = {"application/json": {"schema": {"type": "object"}}}
_ANYTHING = {**_JSON, "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

_REFUSALS: Final = {
    "400": "INVALID_TOKEN: not a fencing token, or two different ones; INVALID_KEY: none is named",
    "401": "BAD_SEQUENCER",
    "403": "TOKEN_NOT_FOR_THIS_KEY",
    "404": "NOT_FOUND",
    "405": "METHOD_NOT_ALLOWED; `Allow` tells what is",
    "412": "STALE_TOKEN: never worth a retry; PRECONDITION_FAILED: your own If-Match or If-None-Match",
    "413": "TOO_LARGE",
    "416": "RANGE_NOT_SATISFIABLE",
    "422": "INVALID_…: names the field",
    "428": "TOKEN_REQUIRED",
    "503": "RESOURCE_UNAVAILABLE, with `outcome` `not-written` or `unknown`; SHUTTING_DOWN",
}
_READ = ("400", "401", "403", "404", "412", "422", "503")
_WRITE = (*_READ, "413", "428")


def _call(
    summary: str, parameters: list[Item], done: dict[str, str], refusals: tuple[str, ...], **more: Any
) -> dict[str, Any]:
    content = more.pop("content", _JSON)
    answers: Item = {
        status: {
            "description": text,
            "headers": _HIGHEST,
            **({} if status in ("204", "304") else {"content": content}),
        }
        for status, text in done.items()
    }
    for status in sorted(refusals):
        answers[status] = {"description": _REFUSALS[status], "headers": _HIGHEST, "content": _PROBLEM}
    return {"tags": ["resources"], "summary": summary, "parameters": parameters, "responses": answers, **more}


_ANY_BODY = {"required": True, "content": _ANYTHING}
_JSON_BODY = {"required": True, "content": _JSON}
_BATCH_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["writes"],
                "properties": {
                    "writes": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": 1000,
                        "items": {
                            "type": "object",
                            "required": ["op", "key"],
                            "properties": {
                                "op": {"enum": ["put", "patch", "delete"]},
                                "key": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
                                "value": {"type": "object"},
                            },
                        },
                    }
                },
            }
        }
    },
}
_READ_HEADERS = [_READ_TOKEN, _LOCK, _IF_MATCH, _IF_NONE_MATCH]
_WRITE_HEADERS = [_TOKEN, _LOCK, _IF_MATCH, _IF_NONE_MATCH]
_WRITTEN = {"200": "Written, with `Prefer: return=representation`", "201": "Created", "204": "Written"}

PATHS: Final[dict[str, Item]] = {
    "/v1/resources/{resource}/{key}": {
        "parameters": [_RESOURCE, _KEY],
        "get": _call(
            "Read a row or an object",
            [*_READ_HEADERS, _RANGE],
            {"200": "What is there", "206": "A range of an object", "304": "Not modified"},
            (*_READ, "416"),
            content=_ANYTHING,
        ),
        "head": _call(
            "Look at a row or an object", _READ_HEADERS, {"200": "It is there", "304": "Not modified"}, _READ
        ),
        "put": _call("Replace or create", [*_WRITE_HEADERS, _PREFER], _WRITTEN, _WRITE, requestBody=_ANY_BODY),
        "patch": _call(
            "Merge into a row (RFC 7396)",
            [*_WRITE_HEADERS, _PREFER],
            {"200": _WRITTEN["200"], "204": "Written"},
            (*_WRITE, "405"),
            requestBody=_JSON_BODY,
        ),
        "delete": _call("Remove; the fence keeps its mark", _WRITE_HEADERS, {"204": "Removed"}, _WRITE),
    },
    "/v1/resources/{resource}/{key}/claim": {
        "parameters": [_RESOURCE, _KEY],
        "post": _call("Raise the fence of a key to your token", [_TOKEN, _LOCK], {"200": "Raised"}, _WRITE),
    },
    "/v1/resources/{resource}/claim": {
        "parameters": [_RESOURCE],
        "post": _call("Raise the fence, where one lock guards all", [_TOKEN, _LOCK], {"200": "Raised"}, _WRITE),
    },
    "/v1/resources/{resource}/batch": {
        "parameters": [_RESOURCE],
        "post": _call(
            "Write several rows in one transaction, under one token",
            [_TOKEN, _LOCK, _PREFER],
            {"200": "All written"},
            _WRITE,
            requestBody=_BATCH_BODY,
        ),
    },
    "/v1/resources/{resource}": {
        "parameters": [_RESOURCE],
        "get": _call(
            "List objects",
            [
                _query("prefix", "Only keys that start with this."),
                _query("cursor", "`nextCursor` of the page before."),
                _query(
                    "limit", "Size of the page.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
                ),
            ],
            {"200": "`objects`, and `nextCursor` when there are more"},
            ("400", "404", "422", "503"),
        ),
    },
    "/v1/fences/{resource}/{key}": {
        "parameters": [_RESOURCE, _KEY],
        "get": _call("Look at a fence", [], {"200": "Its lock key, mark and guarantee"}, ("404", "405", "422", "503")),
    },
}
