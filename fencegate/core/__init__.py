"""The rules of Fencegate: pure, with no I/O, no clock and no third-party import."""
