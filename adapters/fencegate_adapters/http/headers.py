"""Which headers pass the gateway, in both directions.

What belongs to one connection ends here. What says who the caller is, or which token it has, is said by the gateway
alone: a caller that sends such a header is not believed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from fencegate.core.errors import InvalidInput, ResourceUnavailable, TooLarge

Headers = Sequence[tuple[bytes, bytes]]

MAX_HEADERS = 256
MAX_HEADER_BYTES = 64 * 1024
MAX_HOPS = 4
VIA = b"1.1 fencegate"

# RFC 9110, 7.6.1, and what older software sends.
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
_OF_A_PROXY = b"proxy-"
_SAID_BY_US = frozenset({b"host", b"content-length", b"expect", b"forwarded", b"x-real-ip", b"via"})
# To some frameworks these make another method or path of a request: not the one whose lock was looked at. `Proxy` is
# HTTP_PROXY to CGI programs: where their own requests go.
_OTHERWISE = frozenset(
    {b"x-http-method", b"x-http-method-override", b"x-method-override", b"x-original-url", b"x-rewrite-url", b"proxy"}
)
_NOT_ONWARD = (b"fencing-", b"x-forwarded-", _OF_A_PROXY)
# uvicorn dates every answer; the marks that are told are those of this gateway's fence.
_NOT_BACK = frozenset({b"date", b"fencing-token-highest", b"fencing-shadow"})

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# HTTP of another version may be offered by anyone, and need not be taken up; anything else wants a tunnel.
_HARMLESS_UPGRADE = re.compile(rb"\s*(?:h2c|TLS/[0-9.]+|HTTP/[0-9.]+)\s*", re.IGNORECASE)


def check(headers: Headers) -> None:
    """Refuse a request whose headers ask for what can't be passed on."""
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise TooLarge(f"the headers are over {MAX_HEADERS}, or over {MAX_HEADER_BYTES} bytes")
    names = [name for name, _ in headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise InvalidInput("Content-Length", "and Transfer-Encoding exclude each other")
    if names.count(b"host") > 1:
        raise InvalidInput("Host", "is given twice")
    for name, value in headers:
        if _NAME.fullmatch(name) is None or _CONTROL.search(value) is not None:
            raise InvalidInput("headers", "hold a control character, or a name that is none")
        if name == b"upgrade" and not all(map(_HARMLESS_UPGRADE.fullmatch, value.split(b","))):
            raise InvalidInput("Upgrade", "is refused: requests are passed on one by one, tunnels are not")
        if name == b"expect" and value.lower() != b"100-continue":
            raise InvalidInput("Expect", "can only be 100-continue")
    if sum(value.count(VIA) for name, value in headers if name == b"via") >= MAX_HOPS:
        raise InvalidInput("Via", f"tells of {MAX_HOPS} gateways: the service's URL seems to lead back here")


def onward(headers: Headers, ours: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """What the service gets of a request's headers, and `ours`."""
    dropped = _named_in_connection(headers) | _OF_A_CONNECTION | _SAID_BY_US | _OTHERWISE
    passed = [
        (name, value.strip(b" \t"))
        for name, value in headers
        # To many services `Fencing_Token` and `Fencing-Token` are one name (CGI, WSGI).
        if name not in dropped and b"_" not in name and not name.startswith(_NOT_ONWARD)
    ]
    via = b", ".join([*(value for name, value in headers if name == b"via"), VIA])
    return [*passed, (b"via", via), *ours.items()]


def back(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """What the caller gets of an answer's headers."""
    lower = [(name.lower(), value) for name, value in headers]
    for name, value in lower:
        if _NAME.fullmatch(name) is None or _CONTROL.search(value) is not None:
            raise ResourceUnavailable("the service answered with a header that is none", outcome="unknown")
    dropped = _named_in_connection(lower) | _OF_A_CONNECTION | _NOT_BACK
    if any(name == b"transfer-encoding" for name, _ in lower):
        dropped |= {b"content-length"}  # it was read by its chunks (RFC 9112, 6.3)
    return [(name, value) for name, value in lower if name not in dropped and not name.startswith(_OF_A_PROXY)]


def fence_headers(fence: str, token: int | None) -> dict[bytes, bytes]:
    """The token, and the lock that it is of."""
    if token is None:
        return {}
    headers = {b"fencing-token": b"%d" % token}
    if fence == fence.strip():  # a header can't hold blanks at its ends; the service knows its guard all the same
        headers[b"fencing-lock"] = fence.encode()
    return headers


def told_mark(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The highest token that the service says it has seen; 0 when it says nothing that can be believed."""
    values = [value for name, value in headers if name.lower() == b"fencing-token-highest"]
    if len(values) == 1 and re.fullmatch(rb"[1-9][0-9]{0,18}", values[0]) is not None:
        return int(values[0])
    return 0


def _named_in_connection(headers: Headers) -> set[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    return {token.strip(b" \t").lower() for value in values for token in value.split(b",")}
