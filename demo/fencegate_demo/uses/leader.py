"""Leader election: one instance of a service assigns the work, and a deposed one can't any more.

Who leads may be wrong about it for a moment: frozen, cut off, slow. So each write of the leader carries the token of
its term, and the gateway refuses those of earlier terms.

The gateway is told which election guards the plan: `guard = "leader:{key}"`.

    locks, plans = connect(), httpx.Client(base_url="http://127.0.0.1:7420/v1/resources/plans/")
    lead(locks, plans, "order-service", tasks)
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import httpx

from fencegate.sync import Locks


def lead(locks: Locks, plans: httpx.Client, service: str, tasks: Iterable[str], *, ttl: float = 15.0) -> None:
    """Wait until elected, then assign tasks until there are no more; the next one is elected at once."""
    address = quote(service)
    with locks.lead(f"leader:{service}", ttl=ttl) as term:
        known = plans.get(address, headers=term.headers())  # a fenced read: earlier leaders are out from here on
        if known.status_code != 404:
            known.raise_for_status()
        plan: list[dict[str, Any]] = [] if known.status_code == 404 else known.json()["assigned"]
        for task in tasks:
            plan.append({"task": task, "by": locks.owner_id, "term": term.token.wire})
            answer = plans.put(address, json={"assigned": plan}, headers=term.headers())
            answer.raise_for_status()  # 412: we were deposed, and nothing was written
