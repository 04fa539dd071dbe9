"""Errors as problem documents (RFC 9457), by the one table of `core.errors`."""

from fencegate.core.errors import HTTP_STATUS, FencegateError, MethodNotAllowed
from fencegate.web.json import dumps


def status_of(error: FencegateError) -> tuple[int, str]:
    for kind in type(error).__mro__:
        if kind in HTTP_STATUS:
            return HTTP_STATUS[kind]
    return 500, "Internal error"


def problem(error: FencegateError) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Status, body and extra headers of the answer to a request that failed with `error`."""
    status, title = status_of(error)
    code = error.wire_code
    document = {
        "type": f"urn:fencegate:error:{code.lower().replace('_', '-')}",
        "title": title,
        "status": status,
        "detail": error.detail,
        "error": code,
        **error.members,
    }
    headers = []
    if status in (429, 503) or "retryAfterMillis" in error.members:
        seconds = -(-int(error.members.get("retryAfterMillis", 1000)) // 1000)
        headers.append((b"retry-after", b"%d" % max(1, seconds)))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    return status, dumps(document), headers
