"""Deterministic simulation: the real engine and client, in processes of a world whose time and chance are ours."""
