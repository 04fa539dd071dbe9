"""The fencing token of a request, read strictly or refused: the rule that gateway and middleware share."""

from collections.abc import Sequence

from fencegate.core.errors import BadSequencer, InvalidInput, InvalidToken, TokenNotForThisKey
from fencegate.core.token import Token

FAR_BEYOND_NOW_US = 24 * 3600 * 1_000_000


def read_token(values: Sequence[str], connection: Sequence[str] = ()) -> Token | None:
    """The token that these values of `Fencing-Token` name; None when there is none.

    `connection` are the values of `Connection`, whose names end at the next hop.
    """
    if not values:
        return None
    if any("fencing-token" in value.lower() for value in connection):
        raise InvalidToken("Fencing-Token goes end to end: it must not be named in Connection")
    value, *others = values
    if any(other != value for other in others):
        raise InvalidToken("Fencing-Token is given twice, with different values")
    if "." in value and not value.replace(".", "", 1).isdigit():
        raise BadSequencer("this server takes bare tokens only: send the decimal fencingToken of your lease")
    return Token.parse(value)


def check_lock(values: Sequence[str], fence: str) -> None:
    """A lock that the caller names beside its token, in `Fencing-Lock`, must be the one that guards the key."""
    for value in values:
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
