"""The gateway: protected resources over HTTP, each write with its fencing token."""

from fencegate.gateway.app import Gateway
from fencegate.gateway.resources import ResourceSettings, build

__all__ = ["Gateway", "ResourceSettings", "build"]
