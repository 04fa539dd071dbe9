"""Measures Fencegate against its peers, side by side on one machine, and prints the ratios: `python -m bench`."""
