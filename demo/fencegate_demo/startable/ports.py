"""Ports that stay ours while a server that uses them is down."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_address() -> Iterator[str]:
    """An address for a server that is started again on it: nobody else is given the port while that server is down.

    A socket that is bound and does not listen keeps it. Linux lets a server listen there all the same; elsewhere the
    port is only likely to be free.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{keeper.getsockname()[1]}"
        if sys.platform != "linux":
            keeper.close()
        yield address


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
