"""The store `redlock://`: independent Redis nodes, of which a majority decides."""
