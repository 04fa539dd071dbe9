"""The proof by demonstration: a holder or a gateway is stopped past its lease, and its late write is refused."""
