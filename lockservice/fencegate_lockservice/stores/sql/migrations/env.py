"""What Alembic runs to find the connection that `migrate` gives it."""

from alembic import context

from fencegate_lockservice.stores.sql.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
