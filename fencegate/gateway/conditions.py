"""The caller's own wishes in headers: If-Match, If-None-Match and Prefer."""

import re

from fencegate.core.errors import InvalidInput, PreconditionFailed
from fencegate.core.ports import NO_CONDITIONS, Conditions
from fencegate.web.asgi import Reply, Request

_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|$)')
_REPRESENTATION = re.compile(r'(?:^|[,;\s])return\s*=\s*"?representation"?(?:$|[,;\s])', re.IGNORECASE)


def quoted(etag: str) -> bytes:
    return b'"%s"' % etag.encode("ascii")


def given_conditions(request: Request) -> Conditions:
    if not (request.headers(b"if-match") or request.headers(b"if-none-match")):
        return NO_CONDITIONS  # the common case: adapters know it without a look inside
    return Conditions(_tags(request, "If-Match", weak=False), _tags(request, "If-None-Match", weak=True))


def judge_read(request: Request, etag: str) -> Reply | None:
    """The conditions of a read: None to go on, 304 when the caller has this value already."""
    conditions = given_conditions(request)
    if not Conditions(if_match=conditions.if_match).hold(etag):
        raise PreconditionFailed("the value is not the one that If-Match names")
    if not conditions.hold(etag):
        return Reply(304, headers=[(b"etag", quoted(etag))])
    return None


def wants_representation(request: Request) -> bool:
    return any(_REPRESENTATION.search(value) is not None for value in request.headers(b"prefer"))


def _tags(request: Request, name: str, *, weak: bool) -> tuple[str, ...] | None:
    """The tags that a header lists. A weak one never matches where equality has to be strong."""
    values = request.headers(name.lower().encode())
    if not values:
        return None
    text = ",".join(values).strip()
    if text == "*":
        return ("*",)
    tags = []
    at = 0
    while at < len(text):
        found = _TAG.match(text, at)
        if found is None or found[2] == "*":
            raise InvalidInput(name, 'must be * or a list of quoted tags, such as "abc"')
        if weak or not found[1]:
            tags.append(found[2])
        at = found.end()
    return tuple(tags)
