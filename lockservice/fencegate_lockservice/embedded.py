"""The lock calls in this process, without a server: over the store, or the stores, that a URL names."""

from fencegate.clock import SYSTEM, Clock
from fencegate.env import setting
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.opening import LockService, open_service
from fencegate_lockservice.routes import Routes


async def open_api(url: str, clock: Clock = SYSTEM) -> LockService:
    """Open what is behind `url` (embedded stores are shared within the process) in this event loop.

    Several stores are given as `FENCEGATE_STORE` has them: `orders:=redis://a *=postgresql://b`.
    """
    return await open_service(Routes.in_text(url), LockSettings.of(None, setting), clock)
