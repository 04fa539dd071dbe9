"""`fencegate run`: the lock is held while a command runs, and the command never outlives it. With real processes."""

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from fencegate.cli import app
from fencegate.run.line import Deadline, Ended, Line
from fencegate.run.patience import Patience
from tests.servers import MakeServer, Server

FENCEGATE = [sys.executable, "-c", "from fencegate.cli import main; main()", "run"]
LIMIT_S = 60.0
_names = iter(range(10**9))

# It says its process id and its parent's, the guard's, and stays; SIGTERM ends it.
STAYS = "echo $$ $PPID; exec sleep 600"
# SIGTERM does not.
DEAF = "trap '' TERM; echo $$ $PPID; while :; do sleep 0.05; done"


class Run:
    """`fencegate run` as a process, with the lines that its command says."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*FENCEGATE, *arguments],
            env=os.environ | {"FENCEGATE_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def pids(self) -> tuple[int, int]:
        """Of the command and its guard, once the command runs."""
        command, guard = self.line().split()
        return int(command), int(guard)

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said of itself, once it ended."""
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


StartRun = Callable[..., Run]


@pytest.fixture
def start(server: Server) -> Iterator[StartRun]:
    started: list[Run] = []

    def start_one(*arguments: str, url: str = server.url) -> Run:
        started.append(Run(url, *arguments))
        return started[-1]

    yield start_one
    for run in started:
        run.process.kill()  # its guard ends the rest
        run.process.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="module", autouse=True)
def long_run(server: Server) -> Iterator[tuple[Run, str]]:
    """One that outlives its first lease while the other tests run, and its lock key.

    A worker may come back to this file, and finds the lock of the first time still held: so each time has its own.
    """
    key = f"run:renewed-{next(_names)}"
    run = Run(server.url, key, "--ttl", "12s", *sh("echo $FENCEGATE_TOKEN; cat"))
    yield run, key
    run.process.kill()
    run.process.communicate(timeout=LIMIT_S)


def sh(script: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", script)


def until(holds: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < give_up, f"never seen: {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether it ended; whose task it was to reap it doesn't matter."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat[stat.rindex(")") + 2] in "ZX"


def until_gone(pid: int) -> None:
    until(lambda: is_gone(pid), f"the end of process {pid}")


def is_free(http: httpx.Client, key: str) -> bool:
    return http.get(f"/v1/locks/{key}").status_code == 404


def waiters(http: httpx.Client, key: str) -> int:
    return int(http.get(f"/v1/locks/{key}").json().get("waiters", 0))


# --- a command under its lock ---


def test_the_command_finds_key_token_and_sequencer_in_its_environment(start: StartRun, http: httpx.Client) -> None:
    run = start("run:env", *sh('echo "$FENCEGATE_LOCK_KEY $FENCEGATE_TOKEN [$FENCEGATE_SEQUENCER]"; read line'))
    key, token, sequencer = run.line().split()
    status = http.get("/v1/locks/run:env").json()
    assert (key, token) == ("run:env", status["fencingToken"])
    assert sequencer == f"[{status.get('sequencer') or ''}]"
    assert run.process.stdin is not None
    run.process.stdin.write("go on\n")
    run.process.stdin.flush()
    assert run.end()[0] == 0


def test_input_output_and_other_descriptors_go_through(server: Server) -> None:
    reader, writer = os.pipe()
    script = f"import os, sys; print(input()); print('err', file=sys.stderr); os.write({writer}, b'more')"
    done = subprocess.run(
        [*FENCEGATE, "run:through", "--url", server.url, "--", sys.executable, "-c", script],
        input="in",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        pass_fds=[writer],
    )
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert (done.stdout, done.stderr, lines.read()) == ("in\n", "err\n", "more")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -KILL $$"), 128 + 9),
        (("no-such-command",), 127),
        (("/etc/passwd",), 126),
    ],
)
def test_the_exit_code_is_the_commands_own_and_the_lock_is_free(
    start: StartRun, http: httpx.Client, command: tuple[str, ...], code: int
) -> None:
    key = f"run:code-{code}"
    ended, said = start(key, "--", *command).end()
    assert ended == code
    assert is_free(http, key)
    assert (command[0] in said) == (code in (126, 127))


def test_a_lock_that_is_held_is_refused_at_once_and_the_message_says_what_to_do(
    start: StartRun, http: httpx.Client
) -> None:
    http.post("/v1/locks/run:held/acquire", json={"ownerId": "someone"})
    code, said = start("run:held", "--", "echo", "never").end()
    assert code == 1
    assert "'run:held' is held by 'someone'" in said
    assert "--wait" in said


def test_a_second_run_waits_until_the_first_has_ended(start: StartRun, http: httpx.Client) -> None:
    first = start("run:wait", *sh("echo first; cat"))
    assert first.line() == "first"
    second = start("run:wait", "--wait", "5m", *sh("echo second"))
    until(lambda: waiters(http, "run:wait") == 1, "the second one in the queue")
    assert first.end()[0] == 0  # its input ended
    assert second.line() == "second"
    assert second.end()[0] == 0
    assert is_free(http, "run:wait")


def test_permits_have_a_fence_each_and_readers_share(start: StartRun, http: httpx.Client) -> None:
    script = 'echo "$FENCEGATE_FENCE"; cat'
    runs = [start("run:permits", "--limit", "2", *sh(script)) for _ in range(2)]
    assert {run.line() for run in runs} == {"run:permits#0", "run:permits#1"}
    assert start("run:permits", "--limit", "2", *sh(script)).end()[0] == 1
    readers = [start("run:shared", "--shared", "--priority", "5", *sh("echo reads; cat")) for _ in range(2)]
    assert [run.line() for run in readers] == ["reads", "reads"]
    assert start("run:shared", "--", "true").end()[0] == 1
    assert [run.end()[0] for run in runs + readers] == [0, 0, 0, 0]


# --- signals ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_the_lock_is_free_once_the_command_ended(
    start: StartRun, http: httpx.Client, number: signal.Signals
) -> None:
    key = f"run:{number.name}"
    script = f"trap 'echo heard; exit 5' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    run = start(key, *sh(script))
    assert run.line() == "ready"
    os.kill(run.pid, number)
    assert run.line() == "heard"
    assert run.end()[0] == 5
    assert is_free(http, key)


def test_a_command_that_dies_of_a_signal_that_was_passed_on_is_told_as_a_shell_does(start: StartRun) -> None:
    run = start("run:143", *sh(STAYS))
    run.pids()
    os.kill(run.pid, signal.SIGTERM)
    assert run.end()[0] == 128 + 15


def test_a_run_that_is_interrupted_while_it_waits_takes_the_lock_from_nobody(
    start: StartRun, http: httpx.Client
) -> None:
    held = http.post("/v1/locks/run:queue/acquire", json={"ownerId": "someone", "ttlMillis": 600_000}).json()
    run = start("run:queue", "--wait", "5m", "--", "echo", "never")
    until(lambda: waiters(http, "run:queue") == 1, "it in the queue")
    os.kill(run.pid, signal.SIGTERM)
    assert run.end()[0] == 128 + 15
    http.post("/v1/locks/run:queue/release", json={"lockToken": held["lockToken"], "ownerId": "someone"})
    answer = http.post("/v1/locks/run:queue/acquire", json={"ownerId": "next", "waitMillis": 30000})
    assert answer.status_code == 200


def test_a_run_that_is_interrupted_ends_soon_though_the_server_does_not_answer(start: StartRun) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        run = start("run:silent", *sh("true"), url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        asked, _ = silent.accept()
        with asked:
            run.process.send_signal(signal.SIGINT)
            begun_s = time.monotonic()
            assert run.end()[0] == 130
    assert time.monotonic() - begun_s < 8  # what is owed at exit is worth 2 s; a call may take 10


# --- the lock is lost ---


def test_a_run_that_is_killed_takes_its_command_along_while_the_lease_still_lives(
    start: StartRun, http: httpx.Client
) -> None:
    run = start("run:killed", "--ttl", "2m", *sh(STAYS))
    command, guard = run.pids()
    run.process.kill()
    until_gone(command)
    assert not is_free(http, "run:killed")  # nobody released it: it runs out, long after its command ended
    until_gone(guard)


def test_a_run_that_is_killed_takes_even_a_deaf_command_along(start: StartRun) -> None:
    run = start("run:deaf", "--ttl", "4s", "--grace", "1m", *sh(DEAF))
    command, _ = run.pids()
    run.process.kill()
    until_gone(command)


def test_a_run_that_is_paused_past_its_lease_loses_its_command(start: StartRun, http: httpx.Client) -> None:
    run = start("run:paused", "--ttl", "4s", *sh(STAYS))
    command, _ = run.pids()
    os.kill(run.pid, signal.SIGSTOP)
    until_gone(command)
    answer = http.post("/v1/locks/run:paused/acquire", json={"ownerId": "successor", "waitMillis": 30000})
    assert answer.status_code == 200
    os.kill(run.pid, signal.SIGCONT)
    code, said = run.end()
    assert code == 1
    assert "run:paused" in said
    assert http.get("/v1/locks/run:paused").json()["ownerId"] == "successor"


def test_a_forced_release_ends_the_command(start: StartRun, http: httpx.Client) -> None:
    run = start("run:forced", "--ttl", "6s", *sh(STAYS))
    command, _ = run.pids()
    assert http.post("/v1/locks/run:forced/force-release", json={"reason": "test"}).status_code == 200
    code, said = run.end()
    assert code == 1
    assert "the command is ended" in said
    assert is_gone(command)


def test_a_lock_that_is_asked_back_politely_ends_the_command_and_is_given_back_before_it_is_taken(
    start: StartRun, http: httpx.Client
) -> None:
    run = start("run:asked", "--ttl", "6s", *sh(STAYS))
    command, _ = run.pids()
    http.post("/v1/locks/run:asked/force-release", json={"reason": "maintenance", "graceMillis": 300_000})
    code, said = run.end()
    assert code == 1
    assert "maintenance" in said
    assert is_gone(command)
    assert is_free(http, "run:asked")


def test_a_lock_service_that_is_gone_costs_the_command_its_lock(start: StartRun, make_server: MakeServer) -> None:
    server = make_server()
    run = start("run:alone", "--ttl", "4s", *sh(DEAF), url=server.url)
    command, _ = run.pids()
    server.kill()
    code, said = run.end()
    assert code == 1
    assert is_gone(command)
    assert "ended" in said


def test_a_guard_that_is_killed_costs_the_command_its_life_and_frees_the_lock(
    start: StartRun, http: httpx.Client
) -> None:
    run = start("run:unguarded", "--ttl", "2m", *sh(DEAF))
    command, guard = run.pids()
    os.kill(guard, signal.SIGKILL)
    code, said = run.end()
    assert code == 1
    assert "guard" in said
    assert is_gone(command)
    assert is_free(http, "run:unguarded")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of processes that left the group")
def test_what_the_command_started_ends_with_it_even_in_a_session_of_its_own(
    start: StartRun, http: httpx.Client
) -> None:
    script = "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & wait"
    run = start("run:strays", "--ttl", "6s", "--grace", "500ms", *sh(script))
    stray = int(run.line())
    http.post("/v1/locks/run:strays/force-release", json={"reason": "test"})
    assert run.end()[0] == 1
    assert is_gone(stray)


def test_what_a_command_leaves_behind_may_finish_under_the_lock(start: StartRun, http: httpx.Client) -> None:
    # By another number: what sh starts in the background has /dev/null for its input, and `<&0` would mean that.
    script = "exec 3<&0; (echo $$; read line; echo done) <&3 & exit 3"
    run = start("run:left", "--grace", "1m", *sh(script))
    run.line()
    assert not is_free(http, "run:left")
    assert run.process.stdin is not None
    run.process.stdin.write("\n")
    run.process.stdin.flush()
    assert run.line() == "done"
    assert run.end() == (3, "")


def test_what_a_command_leaves_behind_is_ended_before_the_lock_is_released(start: StartRun, http: httpx.Client) -> None:
    run = start("run:behind", "--grace", "500ms", *sh("sh -c \"trap '' TERM; echo \\$\\$; sleep 600\" & exit 4"))
    left = int(run.line())
    code, said = run.end()
    assert code == 4
    assert "left processes behind" in said
    assert is_gone(left)
    assert is_free(http, "run:behind")


# --- usage ---


def test_no_server_is_exit_code_3(start: StartRun) -> None:
    code, said = start("run:nobody", "--", "echo", "never", url="http://127.0.0.1:1").end()
    assert code == 3
    assert "127.0.0.1:1" in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("k", "--ttl", "5x", "--", "true"), "--ttl"),
        (("k", "--ttl", "500ms", "--", "true"), "--ttl"),
        (("k", "--wait", "-1", "--", "true"), "--wait"),
        (("k", "--grace", "soon", "--", "true"), "--grace"),
        (("k", "--limit", "0", "--", "true"), "--limit"),
        (("k", "--limit", "2", "--shared", "--", "true"), "--shared"),
        (("k",), "COMMAND"),
    ],
)
def test_bad_usage_is_exit_code_2_and_names_the_option(arguments: tuple[str, ...], named: str) -> None:
    result = CliRunner().invoke(app, ["run", *arguments], terminal_width=200, color=False)
    assert result.exit_code == 2
    assert named in result.output


def test_a_lock_key_that_can_not_be_is_bad_usage(start: StartRun) -> None:
    code, said = start("", "--", "true").end()
    assert code == 2
    assert "lockKey" in said


# --- the terminal ---


def test_at_a_terminal_the_command_reads_from_it_and_gets_its_ctrl_c(server: Server, http: httpx.Client) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        script = "trap 'echo interrupted; exit 6' INT; read line; echo read-$line; while :; do sleep 0.05; done"
        os.execv(FENCEGATE[0], [*FENCEGATE, "run:tty", "--url", server.url, *sh(script)])
    try:
        os.write(terminal, b"word\n")
        _read_until(terminal, b"read-word")
        os.write(terminal, b"\x03")
        _read_until(terminal, b"interrupted")
    finally:
        until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), "its end")
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 6
    assert is_free(http, "run:tty")


def _read_until(terminal: int, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        assert select.select([terminal], [], [], LIMIT_S)[0], f"never said: {wanted!r}, only {seen!r}"
        seen += os.read(terminal, 4096)


# --- the rule, and the line ---


def test_the_guards_last_word_is_heard_even_when_it_crosses_with_ours() -> None:
    ours, theirs = (Line(end) for end in socket.socketpair())
    ours.tell(Deadline(1))  # it never reads this
    theirs.tell(Ended(0, stopped=False))
    theirs.close()
    ours.tell(Deadline(2))
    assert ours.read() == [Ended(0, stopped=False)]
    assert ours.is_closed
    ours.close()


def test_a_command_is_asked_ahead_of_the_deadline_and_ended_at_the_deadline_at_the_latest() -> None:
    patience = Patience(grace_us=10, ttl_us=100, deadline_us=100)
    assert patience.asks_at_us == 90
    patience.ask(90)
    assert patience.ends_at_us == 100
    patience = Patience(grace_us=1000, ttl_us=100, deadline_us=100)
    assert patience.asks_at_us == 75  # not so early that a renewal that is due could not come in time
    patience.ask(20)
    assert patience.ends_at_us == 100


def test_a_renewal_moves_the_deadline_and_takes_nothing_back() -> None:
    patience = Patience(grace_us=10, ttl_us=100, deadline_us=100)
    patience.extend(130)
    patience.extend(110)
    assert patience.asks_at_us == 120
    patience.ask(120)
    patience.extend(200)
    patience.ask(150)
    assert patience.ends_at_us == 130


def test_a_lock_that_is_being_taken_away_shortens_the_grace() -> None:
    patience = Patience(grace_us=50, ttl_us=100, deadline_us=100)
    patience.ask(10)
    patience.shorten(30)
    assert patience.ends_at_us == 30


# --- last, for by now it has run for a while ---


def test_a_lock_is_renewed_for_as_long_as_the_command_runs(long_run: tuple[Run, str], http: httpx.Client) -> None:
    run, key = long_run
    token = run.line()
    status = http.get(f"/v1/locks/{key}").json()
    granted_ms = int(token) // 1000  # a token is minted from the clock
    until(lambda: http.get(f"/v1/locks/{key}").json()["expiresAt"] > granted_ms + 24_500, "two renewals and more")
    assert status["fencingToken"] == token
    assert run.end()[0] == 0
    assert is_free(http, key)
