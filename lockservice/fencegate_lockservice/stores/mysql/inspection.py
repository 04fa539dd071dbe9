"""What can be seen of a MySQL server's settings that makes locks there safe or unsafe."""

from collections.abc import Iterator, Mapping, Sequence

from fencegate.core.ports import Finding
from fencegate_lockservice.stores.mysql.lines import Lines
from fencegate_lockservice.stores.mysql.log import READ_WITHIN_S
from fencegate_lockservice.stores.mysql.statements import names, sql

_VARIABLES = (
    "version", "innodb_flush_log_at_trx_commit", "innodb_flush_method", "innodb_doublewrite", "log_bin", "sync_binlog",
    "binlog_format", "read_only", "super_read_only", "max_allowed_packet", "wsrep_on", "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_source_enabled",
)  # fmt: skip
_NEEDED_PACKET = 8_000_000


async def findings(lines: Lines) -> Sequence[Finding]:
    """What `Store.inspect` promises."""
    # In this order: the driver repeats the server's warnings about the last, and MySQL has one about `followers`.
    statements = [sql("followers"), sql("settings", names=names(_VARIABLES))]
    ((followers,),), variables = await lines.run(statements, READ_WITHIN_S)
    settings = {name: str(value).upper() for name, value in variables}
    return [*_durability(settings), *_usability(settings), *_copies(settings, followers)]


async def max_value(lines: Lines) -> int:
    """How many bytes a value may have: as hexadecimal it is twice as many, and other things are in its packet too."""
    (((packet,),),) = await lines.run([sql("largest_packet")], READ_WITHIN_S)
    return int(packet) * 3 // 8


def _durability(settings: Mapping[str, str]) -> Iterator[Finding]:
    flush = settings.get("innodb_flush_log_at_trx_commit")
    if flush != "1":
        yield Finding(
            "unsafe",
            f"innodb_flush_log_at_trx_commit is {flush}: a crash forgets locks that were granted",
            "set innodb_flush_log_at_trx_commit=1",
        )
    elif (method := settings.get("innodb_flush_method")) in ("NOSYNC", "LITTLESYNC"):
        yield Finding(
            "unsafe",
            f"innodb_flush_method is {method}: a power cut forgets locks that were granted, or ruins the tables",
            "leave innodb_flush_method to its default",
        )
    else:
        yield Finding("fine", "every commit is flushed before it is answered (innodb_flush_log_at_trx_commit=1)")
    if settings.get("log_bin") == "ON" and settings.get("sync_binlog") != "1":
        yield Finding(
            "warning",
            f"the binary log is on and sync_binlog is {settings.get('sync_binlog')}: after a power cut the server takes"
            " back what its binary log has lost, locks that were granted too",
            "set sync_binlog=1",
        )
    if settings.get("innodb_doublewrite") == "OFF":
        yield Finding(
            "warning",
            "innodb_doublewrite is off: a power cut in the middle of a write may leave a page that can't be read",
            "turn it on, unless the file system writes whole pages or none",
        )


def _usability(settings: Mapping[str, str]) -> Iterator[Finding]:
    if "ON" in (settings.get("read_only"), settings.get("super_read_only")):
        yield Finding("unsafe", "the server is read-only: no lock can be granted", "name the primary in the URL")
    if settings.get("log_bin") == "ON" and settings.get("binlog_format") == "STATEMENT":
        yield Finding(
            "unsafe",
            "binlog_format is STATEMENT, with which the server refuses our commits (READ COMMITTED)",
            "set binlog_format=ROW or MIXED",
        )
    if int(settings.get("max_allowed_packet", _NEEDED_PACKET)) < _NEEDED_PACKET:
        yield Finding(
            "warning",
            f"max_allowed_packet is {settings['max_allowed_packet']}: a lock with a very long queue may not fit",
            "set max_allowed_packet=16M",
        )


def _copies(settings: Mapping[str, str], followers: int) -> Iterator[Finding]:
    if settings.get("wsrep_on") == "ON":
        yield Finding(
            "warning",
            "Galera: two nodes may take commits of one lock at once, and one is rolled back as it ends. Fencegate was"
            " not tried on it, and a node that lags answers with what was",
            "let all replicas of the lock service use one and the same node, and set wsrep_sync_wait=7",
        )
    semi = "ON" in (settings.get("rpl_semi_sync_master_enabled"), settings.get("rpl_semi_sync_source_enabled"))
    if followers and not semi:
        yield Finding(
            "warning",
            f"{followers} replicas of the database follow asynchronously: a failover to one of them loses the last"
            " commits. A lock may then be granted twice; its tokens still rise, since they follow the clock",
            "use semi-synchronous replication (AFTER_SYNC), and fence what the locks protect",
        )
