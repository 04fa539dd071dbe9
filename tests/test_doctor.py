"""`fencegate doctor`: what it finds, how it says so, and its exit codes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fencegate import settings
from fencegate.core.ports import Finding
from fencegate.doctor import Examined, examine, worst
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.opening import open_service
from fencegate_lockservice.routes import Routes
from fencegate_lockservice.stores.memory import MemoryStore
from tests.servers import MakeServer, kept_address
from tests.test_serve import run


async def looked_at(folder: Path, *stores: str, config: Path | None = None) -> list[Examined]:
    return await examine(settings.read(store=stores or None, data=folder, config=config))


def of(kind: str, examined: list[Examined]) -> list[Examined]:
    return [each for each in examined if each.kind == kind]


async def remember(*routes: str) -> None:
    """Have stores remember routes, as a server does that is started with them."""
    service = await open_service(Routes.of(routes), LockSettings())
    await service.close()


async def test_nothing_is_made_that_is_not_there(tmp_path: Path) -> None:
    examined = await looked_at(tmp_path / "data")
    assert worst(examined) == "fine"
    assert [each.kind for each in examined] == ["settings", "store", "resource", "resource"]
    assert not (tmp_path / "data").exists()


async def test_a_store_is_reached_timed_and_its_findings_are_told(tmp_path: Path) -> None:
    await remember(f"sqlite:///{tmp_path}/locks.db")
    (store,) = of("store", await looked_at(tmp_path))
    assert store.level == "fine"
    assert {"reached in", "round trip", "clock", "limits:"} <= set(store.facts)
    assert "remembers the routes that are configured" in [finding.what for finding in store.findings]


async def test_unsafe_settings_of_a_store_are_told_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def inspect(_: MemoryStore) -> list[Finding]:
        return [Finding("unsafe", "locks may be evicted", "set noeviction"), Finding("warning", "old")]

    monkeypatch.setattr(MemoryStore, "inspect", inspect)
    examined = await looked_at(tmp_path, "memory://doctor")
    (store,) = of("store", examined)
    assert worst(examined) == store.level == "unsafe"
    told = store.as_json()
    assert told["findings"][0] == {"level": "unsafe", "what": "locks may be evicted", "advice": "set noeviction"}


async def test_routes_other_than_a_store_remembers_are_unsafe(tmp_path: Path) -> None:
    a, b = (f"sqlite:///{tmp_path}/{name}.db" for name in "ab")
    await remember(f"orders:={a}", f"*={b}")
    assert worst(await looked_at(tmp_path, f"orders:={a}", f"*={b}")) == "fine"
    examined = await looked_at(tmp_path, f"orders:={b}", f"*={a}")
    assert worst(examined) == "unsafe"
    assert "--accept-routes" in of("store", examined)[0].findings[-1].what


async def test_resources_are_opened_and_their_guarantee_is_told(tmp_path: Path) -> None:
    config = tmp_path / "fencegate.toml"
    config.write_text(
        f'[resources.rows]\nurl = "sqlite:///{tmp_path}/rows.db"\nmode = "shadow"\n'
        f'[resources.files]\nurl = "file://{tmp_path}/files"\n'
        f'[resources.wrong]\nurl = "sqlite:///{tmp_path}/broken.db"\n'
    )
    (tmp_path / "rows.db").touch()
    (tmp_path / "files").mkdir()
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 100)
    rows, files, wrong = of("resource", await looked_at(tmp_path, config=config))
    assert (rows.level, files.level) == ("warning", "fine")
    assert "one step" in rows.findings[0].what
    assert "shadow" in rows.findings[1].what
    assert wrong.level in ("unsafe", "unreachable")


async def test_a_store_of_an_unknown_kind_is_unsafe(tmp_path: Path) -> None:
    (store,) = of("store", await looked_at(tmp_path, "oracle://x"))
    assert store.level == "unsafe"
    assert "'oracle' is not supported" in store.findings[0].what


async def test_a_file_with_an_option_is_refused_here_too_though_there_is_none_yet(tmp_path: Path) -> None:
    (store,) = of("store", await looked_at(tmp_path, "sqlite:///x.db?mode=ro"))
    assert (store.level, "no options" in store.findings[0].what) == ("unsafe", True)


async def test_a_server_that_others_reach_is_warned_of(tmp_path: Path) -> None:
    config = tmp_path / "fencegate.toml"
    config.write_text('listen = "0.0.0.0:7420"\n')
    (found,) = of("settings", await looked_at(tmp_path, config=config))
    assert found.level == "warning"


# --- the command ---


def test_the_command_prints_for_people_and_for_scripts(tmp_path: Path) -> None:
    shown = run("doctor", "--store", "memory://", "--data", str(tmp_path), PYTHONIOENCODING="ascii")
    assert shown.returncode == 0, shown.stderr
    assert "locks are gone when the process ends" in shown.stdout
    told = run("doctor", "--store", "memory://", "--data", str(tmp_path), "--json")
    assert told.returncode == 0
    found: dict[str, Any] = json.loads(told.stdout)
    assert found["level"] == "warning"
    assert [each["kind"] for each in found["examined"]] == ["settings", "store", "resource", "resource"]


def test_what_can_not_be_reached_is_exit_code_3_and_shows_no_password(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="pip install 'fencegate[redis]'")
    with kept_address() as address:
        answer = run("doctor", "--store", f"redis://:secret@{address}", "--data", str(tmp_path))
    assert answer.returncode == 3, answer.stdout
    assert "can't be reached" in answer.stdout
    assert "secret" not in answer.stdout + answer.stderr


def test_bad_settings_are_exit_code_2(tmp_path: Path) -> None:
    answer = run("doctor", "--store", "x", "--data", str(tmp_path))
    assert answer.returncode == 2, answer.stdout
    assert "Traceback" not in answer.stderr
    assert run("doctor", "--gone", "abc").returncode == 2


def test_a_file_that_is_served_right_now_is_no_alarm(tmp_path: Path, make_server: MakeServer) -> None:
    make_server("data")
    answer = run("doctor", "--data", str(tmp_path / "data"))
    assert answer.returncode == 0, answer.stdout
    assert "in use by another process" in " ".join(answer.stdout.split())


def test_routes_are_changed_by_the_command(tmp_path: Path) -> None:
    a, b = (f"sqlite:///{tmp_path}/{name}.db" for name in "ab")
    asyncio.run(remember(f"orders:={a}", f"*={b}"))
    new = ("--store", f"*={b}")
    assert run("doctor", *new, "--data", str(tmp_path)).returncode == 1
    unknown = run("doctor", *new, "--accept-routes", "--data", str(tmp_path))
    assert unknown.returncode == 2
    assert "--retired" in unknown.stderr
    accepted = run("doctor", *new, "--accept-routes", "--retired", a, "--data", str(tmp_path))
    assert accepted.returncode == 0, accepted.stderr
    assert "routes accepted" in accepted.stdout
    asyncio.run(remember(f"*={b}"))
