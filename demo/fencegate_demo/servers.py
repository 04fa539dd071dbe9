"""`fencegate serve` as a process of its own, configured for the resources of the demo."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fencegate.gateway.resources import ResourceSettings
from fencegate_demo.processes import START_WITHIN_S, Child, started

_PROGRAM = ("-c", "from fencegate.cli import main; main()", "serve", "--listen", "127.0.0.1:0")


@dataclass(frozen=True, slots=True)
class Server:
    process: Child
    url: str

    def address(self, resource: str, key: tuple[str, ...]) -> str:
        return f"{self.url}/v1/resources/{resource}/{'/'.join(key)}"


@asynccontextmanager
async def serving(
    name: str,
    resources: Iterable[ResourceSettings],
    folder: Path,
    *,
    store: str | None = None,
    failpoint: str | None = None,
) -> AsyncIterator[Server]:
    """A gateway to these resources; with a store, it is the lock service as well."""
    config = folder / f"{name.replace(' ', '-')}.toml"
    config.write_text("".join(table_of(settings) for settings in resources), encoding="utf-8")
    role = ("--role", "gateway") if store is None else ("--role", "all", "--store", store)
    # What would be unsafe for the user's locks is said, and doesn't matter to ours.
    environment = {"FENCEGATE_ALLOW_UNSAFE_STORE": "1"}
    if failpoint is not None:
        environment["FENCEGATE_FAILPOINT"] = failpoint
    arguments = (*_PROGRAM, *role, "--data", str(folder), "--config", str(config))
    async with started(name, arguments, folder, **environment) as process:
        yield Server(process, await _url(process))


def table_of(settings: ResourceSettings) -> str:
    """What differs from the defaults, as a table of the configuration; `values` tells two kinds apart."""
    told = msgspec.structs.asdict(settings)
    defaults = {each.name: each.default for each in msgspec.structs.fields(settings)}
    given = {
        name: value for name, value in told.items() if name == "values" or (name != "name" and value != defaults[name])
    }
    # A JSON text is a TOML text, as long as nothing outside the basic plane is escaped.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in given.items()]
    return "\n".join([f'[resources."{settings.name}"]', *lines, "", ""])


async def _url(process: Child) -> str:
    url = ""
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while (line := await process.line()) != "ready":
                if line is None:
                    raise await process.refusal()
                if line.startswith("docs"):
                    url = line.split()[1].removesuffix("/docs")
    except TimeoutError:
        raise process.failure(f"was not ready within {START_WITHIN_S:g} s") from None
    return url
