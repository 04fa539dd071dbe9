"""The lock service: leases and fencing tokens over REST, on the store that a team already runs."""
