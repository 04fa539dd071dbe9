"""The store `zookeeper://`: one server, or an ensemble."""
