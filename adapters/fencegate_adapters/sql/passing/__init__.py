"""How a transaction passes its fences, for each kind of database: which statements, and what their answers mean.

Nothing here talks to a database. The statements are asked for one by one (`steps`), and whoever has the connection,
be it of SQLAlchemy, psycopg or Django, blocking or not, carries them out.
"""

from fencegate_adapters.sql.passing.claims import Claims
from fencegate_adapters.sql.passing.rules import Rules, rules_of
from fencegate_adapters.sql.passing.steps import Ask, ClaimFirst, Steps, drive, drive_async

__all__ = ["Ask", "ClaimFirst", "Claims", "Rules", "Steps", "drive", "drive_async", "rules_of"]
