"""The store `postgresql://`."""
