"""The adapter for HTTP services: a fence in front of a service that keeps none of its own."""

from fencegate_adapters.http.exchange import Limits
from fencegate_adapters.http.upstream import Upstream

__all__ = ["Limits", "Upstream"]
