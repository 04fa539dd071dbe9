"""Real MariaDB servers, each in a folder of its own: Debian's `mariadb-server`, or any other on PATH."""

from fencegate_demo.startable.mariadb import HOW_TO_GET, MariadbServer, missing

__all__ = ["HOW_TO_GET", "MariadbServer", "missing"]
