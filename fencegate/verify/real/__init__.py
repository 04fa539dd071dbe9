"""The campaign with real faults on real processes: callers, lock service replicas, gateways and servers."""
