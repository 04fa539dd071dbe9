"""The caller's own wishes in headers: If-Match, If-None-Match, If-Unmodified-Since and Prefer."""

import re
from email.utils import parsedate_to_datetime

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


def refuse_date(request: Request) -> None:
    """Of a write: changes within one second have one date, so a write by it could undo what its caller never saw."""
    if request.headers(b"if-unmodified-since") and not request.headers(b"if-match"):
        raise InvalidInput("If-Unmodified-Since", "is not taken for a write: name the value by its ETag, in If-Match")


def judge_date(request: Request, modified_us: int) -> None:
    """If-Unmodified-Since of a read. If-Match says more, and one that can't be read says nothing (RFC 9110)."""
    given = request.header(b"if-unmodified-since")
    if given is None or request.headers(b"if-match"):
        return
    try:
        since_s = parsedate_to_datetime(given).timestamp()
    except (ValueError, OverflowError):
        return
    if modified_us // 1_000_000 > since_s:
        raise PreconditionFailed("the value was changed after the date in If-Unmodified-Since")


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
