"""`fencegate fence`: the fences of protected resources."""

from pathlib import Path
from typing import Annotated

import typer

from fencegate.cli.options import out
from fencegate.core.errors import InvalidInput
from fencegate.core.token import MAX_TOKEN

app = typer.Typer(help="Fences of protected resources.", no_args_is_help=True)


@app.command("floor")
def floor(
    resource: Annotated[str, typer.Argument(help="The name of the resource.")],
    value: Annotated[int, typer.Argument(min=1, max=MAX_TOKEN, help="Nothing below this token is accepted any more.")],
    data: Annotated[Path | None, typer.Option(help="Folder for everything that is embedded.")] = None,
    config: Annotated[Path | None, typer.Option(help="The TOML file that names the resource.")] = None,
) -> None:
    """Raise every fence of a resource, after a restore or a changed guard or mode; it is never lowered."""
    import asyncio

    from fencegate import settings
    from fencegate.clock import SYSTEM
    from fencegate.gateway.resources import build
    from fencegate.web.tokens import FAR_BEYOND_NOW_US

    known = settings.read(data=data, config=config).resources
    if resource not in known:
        raise InvalidInput("resource", f"there is no resource {resource!r}; there are {', '.join(known)}")
    if known[resource].issuer and value > SYSTEM.now_us() + FAR_BEYOND_NOW_US:
        raise InvalidInput("value", "is far beyond now, and would lock everyone out: tokens are Unix microseconds here")
    wanted = build(known[resource])

    async def raise_floor() -> None:
        try:
            await wanted.raise_floor(value)
        finally:
            await wanted.close()

    asyncio.run(raise_floor())
    out.print(f"[bold]floor[/]  {resource} accepts nothing below {value}; a higher one stays", highlight=False)
