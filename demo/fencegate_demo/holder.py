"""A holder, as a program of its own: `python -m fencegate_demo.holder PART`, told what to do line by line on stdin.

It is the client that most people write: it takes the lock once and believes from then on that it holds it. It has no
deadline and never asks again, so after a pause it goes on where it was, as a process after a long garbage collection.
"""

import sys
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from fencegate.clock import SYSTEM, sleep_s
from fencegate.core.errors import FencegateError
from fencegate.httpx import GatewayKey
from fencegate_demo.events import Event, Failed, Granted, Read, Ready, Released, Wrote

WORK_S = 0.15
"""What a holder does after each update before it sends the next."""
WAIT_MS = 30_000
ANSWER_WITHIN_S = 60.0


class Part(msgspec.Struct, frozen=True):
    """Who this holder is, and where its lock and its data are."""

    name: str
    lock_service: str
    lock_key: str
    ttl_ms: int
    data: str
    """The address of the protected key, at the gateway that this holder uses."""
    claims: bool = False
    """Whether it raises the fence as soon as it has the lock."""
    fenced_reads: bool = True
    """Whether its reads show its token."""


class Unexpected(Exception):
    """An answer that the demo has no use for."""


class Holder:
    """Reads once, then adds to what it has in memory: an update is lost when another overwrites it unread."""

    def __init__(self, part: Part, http: httpx.Client) -> None:
        self._part = part
        self._http = http
        self._lock = f"{part.lock_service}/v1/locks/{quote(part.lock_key)}"
        self._token = 0
        self._lock_token = ""
        self._updates: tuple[str, ...] = ()
        self._own = 0

    def do(self, command: str) -> Event:
        match command:
            case "acquire":
                return self._acquire()
            case "read":
                return self._read()
            case "update":
                return self._update()
            case "release":
                return self._release()
        raise Unexpected(f"{command!r} is not a command")

    def _acquire(self) -> Event:
        asked_us = SYSTEM.monotonic_us()
        body = {"ownerId": self._part.name, "ttlMillis": self._part.ttl_ms, "waitMillis": WAIT_MS}
        grant = _json(self._http.post(f"{self._lock}/acquire", json=body), 200)
        self._token, self._lock_token = int(grant["fencingToken"]), grant["lockToken"]
        granted_us = SYSTEM.monotonic_us()
        until_us = granted_us + grant["remainingMillis"] * 1000
        if self._part.claims:
            GatewayKey(self._part.data).claim(self._part.lock_key, self._token)
        at_us = SYSTEM.monotonic_us()
        return Granted(at_us, self._part.name, self._token, asked_us, until_us, self._part.claims)

    def _read(self) -> Event:
        fenced = self._part.fenced_reads
        answer = self._http.get(self._part.data, headers=self._headers() if fenced else {})
        self._updates = () if answer.status_code == 404 else tuple(_json(answer, 200)["updates"].split())
        return Read(SYSTEM.monotonic_us(), self._part.name, self._token, self._updates, fenced)

    def _update(self) -> Event:
        self._own += 1
        update = f"{self._part.name}{self._own}"
        self._updates += (update,)
        sent_us = SYSTEM.monotonic_us()
        value = {"by": self._part.name, "updates": " ".join(self._updates)}  # texts, for not all resources have lists
        answer = self._http.put(self._part.data, json=value, headers=self._headers())
        refused = _refused(answer)
        if not refused and answer.status_code not in (200, 201, 204):
            raise Unexpected(_told(answer))
        return Wrote(SYSTEM.monotonic_us(), self._part.name, self._token, sent_us, update, not refused)

    def _release(self) -> Event:
        _json(self._http.post(f"{self._lock}/release", json={"lockToken": self._lock_token}), 200)
        return Released(SYSTEM.monotonic_us(), self._part.name)

    def _headers(self) -> dict[str, str]:
        return {"Fencing-Token": str(self._token)}


def _refused(answer: httpx.Response) -> bool:
    """Stale; or given up by a gateway that had stood still for longer than a request to a service may take."""
    if answer.status_code == 412:
        return bool(_json(answer, 412)["error"] == "STALE_TOKEN")
    return answer.status_code == 503 and _json(answer, 503).get("outcome") == "not-written"


def _json(answer: httpx.Response, status: int) -> dict[str, Any]:
    if answer.status_code != status:
        raise Unexpected(_told(answer))
    return dict(answer.json())


def _told(answer: httpx.Response) -> str:
    return f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:300]}"


def _say(event: Event) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    """Do as told until stdin ends, one event on stdout for each command."""
    part = msgspec.json.decode(sys.argv[1], type=Part)
    with httpx.Client(timeout=ANSWER_WITHIN_S, trust_env=False) as http:
        holder = Holder(part, http)
        _say(Ready(SYSTEM.monotonic_us(), part.name))
        for line in sys.stdin:
            try:
                _say(holder.do(line.strip()))
            except (Unexpected, FencegateError, httpx.HTTPError) as error:
                _say(Failed(SYSTEM.monotonic_us(), part.name, str(error) or type(error).__name__))
                return
            if line.strip() == "update":
                sleep_s(WORK_S)


if __name__ == "__main__":
    main()
