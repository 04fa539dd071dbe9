"""`python -m bench.large_object`: one large object through a gateway, both ways, and the memory that the gateway took.

The bucket is on a real S3 server that is started for it, in layout `pointer`. The goal: a GiB in under 200 MiB.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench.server import Server, free_ports
from fencegate_demo.startable import seaweed

MIB = 1024 * 1024
GOAL_MIB = 200
TOKEN = {"Fencing-Token": "1700000000000000"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.large_object", description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="the size of the object (1024)")
    size_mib = parser.parse_args().mib
    if reason := seaweed.missing():
        print(reason, file=sys.stderr)
        return 1
    os.environ |= {"AWS_ACCESS_KEY_ID": seaweed.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": seaweed.SECRET_KEY}
    build = Path(__file__).parents[1] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"bench-{os.getpid()}-", dir=build) as folder:
        bucket = seaweed.SeaweedServer(Path(folder) / "s3")
        try:
            bucket.start()
            return _through(Path(folder), bucket.endpoint, size_mib)
        finally:
            bucket.terminate()


def _through(folder: Path, endpoint: str, size_mib: int) -> int:
    config = folder / "fencegate.toml"
    config.write_text(
        f'[resources.files]\nurl = "s3://bench/large?endpoint={endpoint}&region=us-east-1"\nlayout = "pointer"\n'
        f"max_bytes = {size_mib * MIB}\n"
    )
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", "from fencegate.cli import main; main()", "serve", "--role", "gateway"]
    command += ["--listen", f"127.0.0.1:{port}", "--data", str(folder / "data"), "--config", str(config)]
    server = Server(command, folder / "log", f"{url}/readyz")
    try:
        server.wait_ready()
        before_mib = _peak_mib(server.pid)
        up_s, sent = _upload(f"{url}/v1/resources/files/large", size_mib)
        after_mib = _peak_mib(server.pid)
        down_s, received = _download(f"{url}/v1/resources/files/large")
        peak_mib = _peak_mib(server.pid)
    finally:
        server.stop()
    print(f"{size_mib} MiB up in {up_s:.1f} s ({size_mib / up_s:.0f} MiB/s), down in {down_s:.1f} s")
    print(f"the gateway's memory: {before_mib:.0f} MiB idle, at most {after_mib:.0f} up and {peak_mib:.0f} up and down")
    whole = sent == received
    print("what came back is what was sent" if whole else "what came back is NOT what was sent")
    return 0 if whole and peak_mib < GOAL_MIB else 1


def _upload(url: str, size_mib: int) -> tuple[float, str]:
    piece, digest = os.urandom(MIB), hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        for number in range(size_mib):
            part = piece[number:] + piece[:number]
            digest.update(part)
            yield part

    began_s = time.perf_counter()
    httpx.put(url, content=pieces(), headers=TOKEN, timeout=600).raise_for_status()
    return time.perf_counter() - began_s, digest.hexdigest()


def _download(url: str) -> tuple[float, str]:
    digest, began_s = hashlib.sha256(), time.perf_counter()
    with httpx.stream("GET", url, timeout=600) as answer:
        answer.raise_for_status()
        for part in answer.iter_raw():
            digest.update(part)
    return time.perf_counter() - began_s, digest.hexdigest()


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
