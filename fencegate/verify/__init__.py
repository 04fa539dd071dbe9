"""The correctness campaign: histories of what callers were told, and a judge that knows what must always hold."""
