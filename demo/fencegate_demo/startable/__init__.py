"""Real servers that can be started here: found on PATH or in wheels, with their data in a temporary folder.

The tests use them as well.
"""
