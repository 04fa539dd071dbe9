"""Database-side enforcement: triggers that refuse every write to a table unless its transaction names a token.

A client that goes round Fencegate, with psql or a bare driver, is refused by the database itself. The triggers use the
same fence rows as the gateway and `fenced`, and hold their locks until the commit.
"""
