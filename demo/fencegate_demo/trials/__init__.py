"""The seven uses on trial: real processes, one stopped past its lease, one killed, with the fence and without."""
