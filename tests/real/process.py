"""A real server as one process of its own: started, stopped, continued and killed by its process id."""

from fencegate_demo.startable.process import ANSWER_WITHIN_S, Cluster, ServerProcess

__all__ = ["ANSWER_WITHIN_S", "Cluster", "ServerProcess"]
