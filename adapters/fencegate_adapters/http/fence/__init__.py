"""The durable fence in front of an HTTP service."""
