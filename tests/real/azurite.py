"""A real blob server that speaks Azure's protocol: Azurite, of npm."""

from fencegate_demo.startable.azurite import ACCOUNT, HOW_TO_GET, KEY, AzuriteServer, missing

__all__ = ["ACCOUNT", "HOW_TO_GET", "KEY", "AzuriteServer", "missing"]
