"""The fencing token of a request: read strictly, or refused."""

from fencegate.core.errors import BadSequencer, InvalidInput, InvalidToken, TokenNotForThisKey
from fencegate.core.token import Token
from fencegate.web.asgi import Request

FAR_BEYOND_NOW_US = 24 * 3600 * 1_000_000


def given_token(request: Request) -> Token | None:
    """The token in `Fencing-Token`; None when there is none."""
    values = set(request.headers(b"fencing-token"))
    if not values:
        return None
    if any("fencing-token" in value.lower() for value in request.headers(b"connection")):
        raise InvalidToken("Fencing-Token goes end to end: it must not be named in Connection")
    if len(values) > 1:
        raise InvalidToken("Fencing-Token is given twice, with different values")
    value = values.pop()
    if "." in value and not value.replace(".", "", 1).isdigit():
        raise BadSequencer("this server takes bare tokens only: send the decimal fencingToken of your lease")
    return Token.parse(value)


def check_lock(request: Request, fence: str) -> None:
    """A lock that the caller names beside its token must be the one that guards the key."""
    for value in request.headers(b"fencing-lock"):
        try:
            lock_key = value.encode("latin-1").decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidInput("Fencing-Lock", "is not UTF-8") from None
        if lock_key != fence:
            raise TokenNotForThisKey("the token is of another lock than the one that guards this key", lockKey=fence)


def check_ceiling(token: Token, now_us: int) -> None:
    """Tokens of our own follow Unix microseconds; one far beyond now is forged, and would lock everyone out."""
    if token > now_us + FAR_BEYOND_NOW_US:
        raise TokenNotForThisKey("the token is far beyond now, so the lock service of this resource never issued it")
