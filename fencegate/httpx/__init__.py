"""Fencing with httpx: the lease's headers on every request, and keys behind a gateway that are claimed on acquire.

from fencegate.httpx import GatewayKey, LeaseAuth

account = GatewayKey("http://gateway:7420/v1/resources/accounts", "7")
async with locks.hold("accounts:7", claim=[account]) as lease, httpx.AsyncClient(auth=LeaseAuth(lease)) as http:
    row = (await http.get(account.url)).json()
    await http.put(account.url, json=row | {"balance": 12})
"""

from fencegate.httpx.auth import Lease, LeaseAuth
from fencegate.httpx.gateway import GatewayKey, GatewayResource

__all__ = ["GatewayKey", "GatewayResource", "Lease", "LeaseAuth"]
