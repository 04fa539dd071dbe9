"""Real ZooKeeper servers from Debian's jars: one that stands alone, and an ensemble of three."""

from fencegate_demo.startable.zookeeper import AS_USUAL, SMALL, Ensemble, ZooKeeperServer, missing

__all__ = ["AS_USUAL", "SMALL", "Ensemble", "ZooKeeperServer", "missing"]
