"""Resources behind a gateway, as what a lock may claim on acquire: `locks.hold(key, claim=[account])`."""

import functools
import ssl
from typing import Any, Final
from urllib.parse import quote

import httpx

from fencegate.core import errors
from fencegate.core.errors import FencegateError, InvalidInput, ResourceUnavailable, StaleToken
from fencegate.core.token import Token, token_headers

DEFAULT_TIMEOUT_S = 5.0

_REFUSALS: Final = {
    kind.code: kind
    for kind in (
        errors.TokenRequired,
        errors.InvalidToken,
        errors.BadSequencer,
        errors.TokenNotForThisKey,
        errors.NotFound,
    )
}


class GatewayKey:
    """One key of a resource, or a whole resource that one lock guards: `url` is its address, for reads and writes."""

    def __init__(self, url: str, *key: str, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """`url` is `http://gateway/v1/resources/NAME`, or goes on to the key; `key` are the segments of the key."""
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(
                "url", "must start with http:// or https://, as in http://gateway:7420/v1/resources/NAME"
            )
        if not {"?", "#"}.isdisjoint(url):  # the claim would go to what is before it, as a write
            raise InvalidInput("url", "must end with its path; '?' and '#' in a key are written %3F and %23")
        self.url = "/".join((url.rstrip("/"), *(quote(segment, safe="") for segment in key)))
        self._timeout_s = timeout

    def __repr__(self) -> str:
        return f"<GatewayKey {httpx.URL(self.url).copy_with(userinfo=b'')}>"

    def claim(self, lock_key: str, token: int) -> None:
        """Raise the fence of the key to `token`; StaleToken when a newer holder has been there."""
        headers = token_headers(Token(token).wire, lock_key)
        try:
            # A client of its own, so that a fork or another event loop can do no harm; all that is dear of it is kept.
            with httpx.Client(verify=_verify(self.url), timeout=self._timeout_s, trust_env=False) as client:
                answer = client.post(f"{self.url}/claim", headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            detail = f"{self!r} could not be claimed ({str(error) or type(error).__name__})"
            raise ResourceUnavailable(detail, outcome="unknown") from error
        if not answer.is_success:
            raise self._refusal(answer, token)
        if _mark(answer) < token:  # some servers have a friendly answer to whatever they are sent
            detail = (
                f"{self!r} did not tell, in Fencing-Token-Highest, that its fence is raised; is it a gateway's URL?"
            )
            raise ResourceUnavailable(detail, outcome="unknown")

    def _refusal(self, answer: httpx.Response, token: int) -> FencegateError:
        document = _document(answer)
        code, detail = document.get("error"), str(document.get("detail") or f"{self!r} answered {answer.status_code}")
        if code == StaleToken.code:
            about = {name: document.get(name) for name in ("resource", "key", "lockKey")}
            return StaleToken(token, max(token, _mark(answer)), **about)
        if code in _REFUSALS:
            return _REFUSALS[code](detail)
        field = document.get("field")
        if isinstance(field, str):
            return InvalidInput(field, detail.removeprefix(f"{field}: "))
        return ResourceUnavailable(detail, outcome=str(document.get("outcome", "unknown")))


class GatewayResource:
    """A resource behind a gateway; its keys are what a lock claims.

    >>> accounts = GatewayResource("http://gateway:7420/v1/resources/accounts")
    >>> locks.hold("accounts:7", claim=[accounts.key("7")])

    Where one lock guards the whole resource, the resource itself is claimed.
    """

    def __init__(self, url: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        self._whole = GatewayKey(url, timeout=timeout)
        self._timeout_s = timeout
        self.url = self._whole.url

    def key(self, *segments: str) -> GatewayKey:
        """One of its keys; a composite key has several segments."""
        if not segments:
            raise InvalidInput("key", "name it, as in accounts.key('7')")
        return GatewayKey(self.url, *segments, timeout=self._timeout_s)

    def claim(self, lock_key: str, token: int) -> None:
        """Raise the fence of the lock that guards all keys; StaleToken when a newer holder has been there."""
        self._whole.claim(lock_key, token)


def _verify(url: str) -> ssl.SSLContext | bool:
    return _trusted() if url.startswith("https:") else False


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Reading all certificates takes longer than a claim."""
    return ssl.create_default_context()


def _mark(answer: httpx.Response) -> int:
    """The highest token that the resource says it has seen; 0 when it says nothing that can be read."""
    try:
        return Token.parse(answer.headers.get("Fencing-Token-Highest", ""))
    except errors.InvalidToken:
        return 0


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
