"""A wall clock that a test can move, for a server that asks the C library for the time."""

from fencegate_demo.startable.moved_clock import HOW_TO_GET, MovedClock, missing

__all__ = ["HOW_TO_GET", "MovedClock", "missing"]
