"""What the fork server has ready before it forks: all that a server imports, and nothing for its collector to look at.

A collection touches every object, and so copies every page of memory that a forked process shares with its parent.
"""

import gc

import uvicorn.lifespan.off
import uvloop

import fencegate.cli
import fencegate.feed
import fencegate.serve.documented
import fencegate.serve.server
import fencegate_adapters.http
import fencegate_adapters.objects
import fencegate_adapters.sql
import fencegate_lockservice.stores.sqlite

__all__ = ["fencegate", "fencegate_adapters", "fencegate_lockservice", "uvicorn", "uvloop"]

gc.collect()
gc.freeze()
