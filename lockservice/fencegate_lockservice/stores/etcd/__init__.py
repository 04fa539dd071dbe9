"""The store `etcd://`: one node, or a cluster."""
