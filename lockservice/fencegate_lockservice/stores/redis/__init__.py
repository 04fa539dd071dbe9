"""The store `redis://`: Redis and Valkey."""
