"""The arms on servers that teams run already: Fencegate on each, and what users would take instead."""

from pathlib import Path

from bench.library import Library, SharedServer
from tests.real import etcd, postgres, redis, zookeeper
from tests.real.etcd import EtcdServer
from tests.real.postgres import PostgresServer
from tests.real.redis import RedisServer
from tests.real.zookeeper import ZooKeeperServer


def _redis(folder: Path) -> RedisServer:
    return RedisServer(folder, "--appendonly", "yes", "--appendfsync", "everysec")


REDIS = SharedServer(_redis, redis.missing)
ETCD = SharedServer(EtcdServer, etcd.missing)
ZOOKEEPER = SharedServer(lambda folder: ZooKeeperServer(folder, java=zookeeper.AS_USUAL), zookeeper.missing)
POSTGRES = SharedServer(lambda _: PostgresServer(), postgres.missing)

ARMS = {
    arm.name: arm
    for arm in (
        Library("redis-py", "redis-py", REDIS),
        Library("redis-py-sync", "redis-py-sync", REDIS),
        Library("python-redis-lock", "python-redis-lock", REDIS),
        Library("fencegate-redis", "fencegate", REDIS),
        Library("fencegate-redis-sync", "fencegate-sync", REDIS),
        Library("etcd-python", "etcd-python", ETCD),
        Library("fencegate-etcd", "fencegate", ETCD),
        Library("kazoo", "kazoo", ZOOKEEPER),
        Library("fencegate-zookeeper", "fencegate", ZOOKEEPER),
        Library("advisory", "advisory", POSTGRES),
        Library("fencegate-postgres", "fencegate", POSTGRES),
    )
}
CYCLES = (
    ("redis-py", 1),
    ("fencegate-redis", 1),
    ("redis-py", 32),
    ("fencegate-redis", 32),
    ("redis-py-sync", 1),
    ("python-redis-lock", 1),
    ("fencegate-redis-sync", 1),
    ("etcd-python", 32),
    ("fencegate-etcd", 32),
    ("kazoo", 32),
    ("fencegate-zookeeper", 32),
    ("advisory", 32),
    ("fencegate-postgres", 32),
)
HAND_OVERS = (("python-redis-lock", 5), ("fencegate-redis", 5), ("fencegate-redis-sync", 5))
