"""The uses that there are, by name."""

from fencegate_demo.trials import cache, cron, files, inventory, leader, migration, payment

USES = {
    use.name: use
    for use in (
        migration.USE,
        cron.USE,
        leader.USE,
        inventory.USE,
        payment.USE,
        cache.USE,
        files.USE,
    )
}
