"""The engine: load, ask the state machine, commit if unchanged. Written once, for every store."""

from fencegate.engine.engine import Engine

__all__ = ["Engine"]
