"""`fencegate serve` and the other commands, as the installed command runs them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import MakeServer, Server

FENCEGATE = [str(Path(sys.executable).parent / "fencegate")]
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("FENCEGATE_")}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FENCEGATE, *arguments], capture_output=True, text=True, timeout=120, env={**_ENVIRONMENT, **environment}
    )


class Command:
    """`fencegate serve` in a folder of its own, with what it printed until `ready`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*FENCEGATE, "serve", *arguments],
            cwd=folder,
            env=_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if self.lines[-1] == "ready":
                break
        self.url = next(line.split()[1].removesuffix("/docs") for line in self.lines if line.startswith("docs"))


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    running = Command(tmp_path, "--listen", "127.0.0.1:0")
    yield running
    running.process.kill()
    running.process.wait()


def test_serve_says_one_line_per_endpoint_and_then_ready(command: Command, tmp_path: Path) -> None:
    assert command.lines[-1] == "ready"
    assert [line.split()[0] for line in command.lines] == ["locks", "rows", "objects", "docs", "ready"]
    assert (tmp_path / ".fencegate" / "locks.db").exists()
    with httpx.Client(base_url=command.url, timeout=30) as http:
        token = http.post("/v1/locks/rows:cart/acquire", json={}).json()["fencingToken"]
        headers = {"Fencing-Token": token}
        assert http.put("/v1/resources/rows/cart", json={"items": 3}, headers=headers).status_code == 201
        assert http.get("/v1/resources/rows/cart").json() == {"items": 3}
        assert http.put("/v1/resources/objects/a/b", content=b"bytes", headers=headers).status_code == 201
        assert http.get("/v1/resources/objects/a/b").content == b"bytes"


def test_sigterm_sends_waiters_away_at_once_and_exits_with_0(command: Command) -> None:
    with httpx.Client(base_url=command.url, timeout=90) as http:
        http.post("/v1/locks/a/acquire", json={"ownerId": "holder", "ttlMillis": 600_000})
        answers: list[tuple[int, dict[str, Any], float]] = []

        def wait(number: int) -> None:
            before = time.monotonic()
            body = {"waitMillis": 60000} | ({"requestId": f"r{number}"} if number % 2 else {})
            answer = http.post("/v1/locks/a/acquire", json=body)
            answers.append((answer.status_code, answer.json(), time.monotonic() - before))

        waiters = [threading.Thread(target=wait, args=(number,)) for number in range(6)]
        for waiter in waiters:
            waiter.start()
        while http.get("/v1/locks/a").json()["waiters"] < 6:
            time.sleep(0.02)
        before = time.monotonic()
        command.process.send_signal(signal.SIGTERM)
        for waiter in waiters:
            waiter.join()
        assert time.monotonic() - before < 30  # far below the wait that they asked for
    assert command.process.wait(60) == 0
    assert [(status, problem["error"]) for status, problem, _ in answers] == [(503, "SHUTTING_DOWN")] * 6


_STUCK = """
import concurrent.futures, threading
from fencegate.serve.server import end_at_the_latest
concurrent.futures.ThreadPoolExecutor(1).submit(threading.Event().wait)
end_at_the_latest(0.1, lambda: 0)
"""


def test_a_thread_that_waits_for_ever_does_not_keep_a_process_that_is_to_end() -> None:
    ended = subprocess.run([sys.executable, "-c", _STUCK], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, "stood still" in ended.stderr) == (0, True), ended.stderr


def test_the_data_folder_is_for_its_owner_alone(command: Command, tmp_path: Path) -> None:
    assert (tmp_path / ".fencegate").stat().st_mode & 0o777 == 0o700  # there are lockTokens in it


def test_what_was_granted_is_held_after_a_restart_and_tokens_go_on(command: Command, tmp_path: Path) -> None:
    with httpx.Client(base_url=command.url, timeout=30) as http:
        first = http.post("/v1/locks/a/acquire", json={"ownerId": "holder", "ttlMillis": 600_000}).json()
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(60) == 0
    again = Command(tmp_path, "--listen", "127.0.0.1:0")
    try:
        with httpx.Client(base_url=again.url, timeout=30) as http:
            assert http.get("/v1/locks/a").json()["fencingToken"] == first["fencingToken"]
            assert http.post("/v1/locks/a/acquire", json={}).status_code == 409
            body = {"lockToken": first["lockToken"]}
            assert http.post("/v1/locks/a/release", json=body).json()["status"] == "RELEASED"
            second = http.post("/v1/locks/a/acquire", json={}).json()
            assert int(second["fencingToken"]) > int(first["fencingToken"])
    finally:
        again.process.kill()
        again.process.wait()


def test_a_second_process_on_the_same_store_is_refused(command: Command, tmp_path: Path) -> None:
    second = run("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / ".fencegate"))
    assert second.returncode == 2
    assert "in use by another process" in second.stderr


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = run("serve", "--listen", address, "--data", str(tmp_path))
    assert answer.returncode == 2
    assert address in answer.stderr


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("listen = 7", "listen"),
        ("nonsense = 1", "nonsense"),
        ("= 1", "line 1"),
        ('store = "oracle://x"', "oracle"),
        ('[resources.x]\nurl = "ftp://x"', "x"),
        ('[resources.x]\nurl = "sqlite:///a.db"\nmode = "sometimes"', "mode"),
        ('[resources.x]\nurl = "sqlite:///a.db"\nguard = "job:{nope}"', "nope"),
        ('role = "king"', "king"),
    ],
)
def test_a_bad_configuration_is_refused_and_says_what(tmp_path: Path, config: str, says: str) -> None:
    (tmp_path / "c.toml").write_text(config)
    answer = run("serve", "--config", str(tmp_path / "c.toml"), "--data", str(tmp_path))
    assert answer.returncode == 2, answer.stdout
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_client_commands(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as http:
        grant = http.post("/v1/locks/cli:a/acquire", json={"ownerId": "somebody", "ttlMillis": 600_000}).json()
    environment = {"FENCEGATE_URL": server.url}
    listed = run("locks", "--prefix", "cli:", "--json", **environment)
    assert [lock["lockKey"] for lock in json.loads(listed.stdout)["locks"]] == ["cli:a"]
    assert "somebody" in run("locks", "--prefix", "cli:", **environment).stdout
    assert json.loads(run("status", "cli:a", "--json", **environment).stdout)["fencingToken"] == grant["fencingToken"]
    assert "somebody" in run("status", "cli:a", "--url", server.url).stdout
    assert run("force-release", "cli:a", **environment).returncode == 2  # no reason given
    assert run("force-release", "cli:a", "--reason", "test", **environment).returncode == 0
    free = run("status", "cli:a", "--json", **environment)
    assert (free.returncode, json.loads(free.stdout)["locked"]) == (1, False)
    assert run("force-release", "cli:a", "--reason", "test", **environment).returncode == 1


@pytest.mark.parametrize(
    ("status", "content"),
    [(404, b"<p>not here</p>"), (401, b"who are you?"), (200, b"<p>hello</p>"), (200, b"{}")],
    ids=["404", "401", "a page", "other JSON"],
)
def test_another_service_at_the_address_is_no_server(status: int, content: bytes) -> None:
    """Exit code 1 of `status` means that nobody holds the lock, and of `run` that another does."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever).start()
        environment = {"FENCEGATE_URL": f"http://127.0.0.1:{other.server_port}"}
        commands = [["locks"], ["status", "k"], ["history", "k"], ["force-release", "k", "--reason", "r"], ["watch"]]
        if status != 200:  # what answers 200 may have done it, and is asked again
            commands.append(["run", "k", "--", "true"])
        try:
            with ThreadPoolExecutor(len(commands)) as threads:  # some of them are patient
                answers = list(threads.map(lambda command: run(*command, **environment), commands))
        finally:
            other.shutdown()
    for answer in answers:
        assert answer.returncode == 3, answer
        assert "Traceback" not in answer.stderr
        assert "lock service" in answer.stderr


def test_a_gateway_alone_is_no_lock_service(make_server: MakeServer) -> None:
    answer = run("status", "k", "--url", make_server("gateway", "--role", "gateway").url)
    assert answer.returncode == 3
    assert "is no lock service" in answer.stderr


@pytest.mark.parametrize("role", ["all", "gateway", "lockservice"])
def test_the_page_for_people_names_only_what_is_served(make_server: MakeServer, role: str) -> None:
    url = make_server(role, "--role", role).url
    page = httpx.get(url).text
    for path in re.findall(r'href="([^"]+)"', page):
        assert httpx.get(url + path).status_code == 200, path
    assert ("/v1/locks" in page, "/v1/resources" in page) == (role != "gateway", role != "lockservice")
    for method, path in re.findall(r'-X ([A-Z]+) +"[$]FENCEGATE([^"]+)"', page):
        token = {"Fencing-Token": "1"} if method == "PUT" else {}
        assert httpx.request(method, url + path, headers=token, json={}).is_success, path


def test_the_page_for_people_names_no_resource_that_is_not_there(make_server: MakeServer, tmp_path: Path) -> None:
    config = tmp_path / "fencegate.toml"
    config.write_text(f'[resources.rows]\nurl = "sqlite:///{tmp_path}/a.db"\nguard = "job:{{key}}"\n')
    page = httpx.get(make_server("guarded", "--config", str(config)).url).text
    assert "rows/cart" not in page
    assert "rows:cart" not in page


def test_a_terminal_that_can_not_show_a_key_shows_it_all_the_same(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as http:
        http.post("/v1/acquire", json={"lockKey": "cli:été", "ttlMillis": 600_000})
    environment = {"FENCEGATE_URL": server.url, "PYTHONIOENCODING": "ascii", "COLUMNS": "200"}
    table = run("locks", "--prefix", "cli:\N{LATIN SMALL LETTER E WITH ACUTE}", **environment)
    assert (table.returncode, table.stderr) == (0, "")
    assert r"cli:\xe9t\xe9" in table.stdout
    listed = run("locks", "--prefix", "cli:\N{LATIN SMALL LETTER E WITH ACUTE}", "--json", **environment)
    assert [lock["lockKey"] for lock in json.loads(listed.stdout)["locks"]] == ["cli:été"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["demo --list", "doctor --json", "--version"])
def test_a_disk_that_is_full_is_said_in_one_line(command: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        told = subprocess.run(
            [*FENCEGATE, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path
        )
    assert told.returncode == 1
    assert re.fullmatch(r"FAILED .*No space left on device\n", told.stderr)


def test_an_output_that_is_closed_is_no_error(tmp_path: Path) -> None:
    told = subprocess.run(
        ["sh", "-c", f"{FENCEGATE[0]} doctor --json >&-"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert (told.returncode, told.stderr) == (0, "")


def test_a_watch_of_what_can_not_be_a_key_is_bad_usage() -> None:
    told = run("watch", "--prefix", "\x01")
    assert (told.returncode, told.stderr.count("\n")) == (2, 1)
    assert "INVALID_PREFIX" in told.stderr


def test_an_interrupt_that_comes_while_the_command_line_is_loaded_ends_it_quietly() -> None:
    program = """
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from fencegate.__main__ import main
main()
"""
    told = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stdout, told.stderr) == (130, "", "")


def test_the_package_can_be_run_as_a_module() -> None:
    told = subprocess.run([sys.executable, "-m", "fencegate", "--version"], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stdout) == (0, run("--version").stdout)


def test_no_server_is_exit_code_3_and_bad_usage_2() -> None:
    answer = run("locks", "--url", "http://127.0.0.1:9")
    assert answer.returncode == 3
    assert "Traceback" not in answer.stderr
    assert run("locks", "--nonsense").returncode == 2
    assert run("status").returncode == 2
    assert run("nonsense").returncode == 2
