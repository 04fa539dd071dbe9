"""A lock that is taken away by force while the store is out of reach: what is told of it, and that something is."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest

from fencegate import connect, sync
from fencegate.clock import SYSTEM
from fencegate.core.errors import OutcomeUnknown
from fencegate.testing.fault_proxy import FaultProxy
from tests.eventually import eventually
from tests.real.postgres import PostgresServer
from tests.test_serve import run


def through(url: str, server: PostgresServer, proxy: FaultProxy) -> str:
    return url.replace(f"127.0.0.1:{server.port}", proxy.address)


async def test_a_forced_release_of_unknown_outcome_is_not_to_be_repeated_unseen(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """It has no requestId: said once more, it may take the lock from whoever has it by then."""
    lock_key = f"forced-{SYSTEM.random_id(4)}"
    with FaultProxy(f"127.0.0.1:{postgres_server.port}") as proxy:
        async with connect(postgres_url) as direct:
            await direct.hold(lock_key, ttl=600).acquire()
            slow = connect(through(postgres_url, postgres_server, proxy), timeout=2.0)

            async def is_reached() -> bool:
                with suppress(OutcomeUnknown):  # a busy machine
                    return bool((await slow.status(lock_key))["locked"])
                return False

            await eventually(is_reached)
            proxy.hold()
            with pytest.raises(OutcomeUnknown, match="look who holds it") as unknown:
                await slow.force_release(lock_key, "test")
            assert "requestId" not in unknown.value.detail
            proxy.pass_()
            await slow.aclose()


def test_the_command_says_on_one_of_its_lines_what_became_of_it_wherever_the_line_is_cut(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with sync.connect(postgres_url) as direct:
        for mark in (b"", b"fencegate_commit"):
            lock_key = f"forced-{SYSTEM.random_id(4)}"
            direct.hold(lock_key, ttl=600).acquire()
            with FaultProxy(f"127.0.0.1:{postgres_server.port}") as proxy:
                proxy.cut_answers(after=mark)
                url = through(postgres_url, postgres_server, proxy)
                done = run("force-release", lock_key, "--reason", "test", "--url", url)
            is_free = not direct.status(lock_key)["locked"]
            if done.returncode == 0:
                assert f"released by force  {lock_key}" in done.stdout
                assert is_free
            else:
                assert (done.returncode, done.stdout) == (3, "")
                assert done.stderr.startswith(("STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"))
                assert not is_free or "OUTCOME_UNKNOWN" in done.stderr


def test_what_a_command_tells_scripts_is_out_before_the_process_is_taken_down() -> None:
    """Whatever goes wrong at its end: what was printed and not flushed would be gone with it."""
    source = (
        "import os; from fencegate.cli.options import print_json; print_json({'status': 'FORCE_RELEASED'}); os._exit(9)"
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, env=buffered)
    assert (done.returncode, done.stdout) == (9, '{"status":"FORCE_RELEASED"}\n')
