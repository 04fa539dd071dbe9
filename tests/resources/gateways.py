"""Gateways in front of HTTP services, for tests: real server processes, set up by a file as a user would."""

import json
import socket
from pathlib import Path
from typing import Any

from tests.servers import Server, start_server


def start_gateway(
    folder: Path, resources: dict[str, dict[str, Any]], name: str = "gateway", **environment: str
) -> Server:
    """A `fencegate serve --role gateway` with these resources; without `fence`, each has one in `folder`."""
    lines = []
    for resource, table in resources.items():
        routes = table.get("routes", [])
        settings = {"fence": f"sqlite:///{folder / resource}.fence.db", **table}
        lines += [f"[resources.{resource}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items() if key != "routes"]
        for route in routes:
            lines += [f"[[resources.{resource}.routes]]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in route.items()]
    config = folder / f"{name}.toml"
    config.write_text("\n".join(lines))
    return start_server(folder / name, "--role", "gateway", "--config", str(config), **environment)


def raw(server: Server, request: bytes, *, shut: bool = False) -> bytes:
    """Send exactly these bytes; everything that comes back until the server closes, or has nothing more to say."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        if shut:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer
