"""The example services as real processes: a paused holder's stale write is refused, and corrupts without `enforce`.

One pause serves all of them: each service is told the same things by the same two holders of one lock.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import fencegate.sync
import fencegate_demo.services
from tests.child import Child
from tests.servers import Server

FRAMEWORKS = ("fastapi", "starlette", "flask", "django")
http = httpx.Client(timeout=60, trust_env=False, verify=False)  # certificates would take longest to read
HERE = Path(fencegate_demo.services.__file__).parent

# What makes an example safe, taken out of it.
ENFORCE = (", fence.enforce(session)", ", session.begin()")
WITHOUT = {
    "fastapi": (ENFORCE, ("FenceMiddleware)", "FenceMiddleware, strict=False)")),
    "starlette": ((", current_fence().enforce(session)", ", session.begin()"), ("rules=", "strict=False, rules=")),
    "flask": (ENFORCE, ("(app.wsgi_app)", "(app.wsgi_app, strict=False)")),
    "django": (
        ("fence.enforce(connection)", "__import__('django.db.transaction').db.transaction.atomic()"),
        ("(get_wsgi_application())", "(get_wsgi_application(), strict=False)"),
    ),
}

# Serves each of the files that it is given, and says where.
SERVICE = """
import importlib.util, socket, threading

def load(file):
    folder, name = os.path.split(file)
    os.environ["DATABASE_FILE"] = name + ".db"
    os.environ["DATABASE_URL"] = "sqlite%s:///%s.db" % ("+aiosqlite" if "starlette" in name else "", name)
    module = name.removesuffix(".py")
    spec = importlib.util.spec_from_file_location(module, file)
    sys.modules[module] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[module])
    return sys.modules[module]

def serve(service, listening):
    if "fastapi" in service.__name__ or "starlette" in service.__name__:
        import uvicorn
        uvicorn.Server(uvicorn.Config(service.app, log_level="error")).run(sockets=[listening])
    else:
        from werkzeug.serving import WSGIRequestHandler, make_server
        WSGIRequestHandler.log_request = lambda *_: None
        app = service.app if "flask" in service.__name__ else service.application
        make_server(*listening.getsockname(), app, threaded=True, fd=listening.fileno()).serve_forever()

os.chdir(os.path.dirname(sys.argv[1]))
for file in sys.argv[1:]:
    service, listening = load(file), socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    threading.Thread(target=serve, args=(service, listening)).start()
    say("http://127.0.0.1:%d" % listening.getsockname()[1])
threading.Event().wait()
"""

# The holder that most people write: it has its token, and believes that the lock is still its own.
HOLDER = """
import json, httpx
import fencegate.sync
http = httpx.Client(timeout=60, trust_env=False, verify=False)
with fencegate.sync.connect(sys.argv[1]) as locks:
    lease = locks.hold("acct:7", ttl=3).acquire()
    headers = lease.headers()
    urls = json.loads(sys.argv[2])
    balances = {url: http.get(url).json()["balance"] for url in urls}
    say("read")
    signal.raise_signal(signal.SIGSTOP)
    for url in urls:
        answer = http.put(url, json={"balance": balances[url] + 1}, headers=headers)
        say(json.dumps([answer.status_code, answer.text]))
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URL of account 7 in each service, by framework; `-unfenced` for the one that does not enforce."""
    folder = tmp_path_factory.mktemp("services")
    files = [[written(framework, arm, folder) for arm in ("", "-unfenced")] for framework in FRAMEWORKS]
    # Django has one application in a process; the others have both of theirs.
    shared = [part for pair in files for part in ([pair] if "django" not in pair[0].name else [[pair[0]], [pair[1]]])]
    with contextlib.ExitStack() as stack:
        children = [(part, stack.enter_context(Child(SERVICE, *part))) for part in shared]
        yield {
            file.stem.replace("_service", "").replace("_", "-"): f"{child.line()}/accounts/7"
            for part, child in children
            for file in part
        }


def written(framework: str, arm: str, folder: Path) -> Path:
    source = (HERE / f"{framework}_app.py").read_text()
    for safe, unsafe in WITHOUT[framework] if arm else ():
        assert safe in source
        source = source.replace(safe, unsafe)
    file = folder / f"{framework}_service{arm.replace('-', '_')}.py"
    file.write_text(source)
    return file


@pytest.fixture(scope="module")
def drama(services: dict[str, str], server: Server) -> dict[str, tuple[int, str]]:
    """A reads 10 and is stopped past its lease; B writes 100; A wakes up and writes 11. What A was answered."""
    with fencegate.sync.connect(server.url) as locks:
        with locks.hold("acct:7", wait=60) as lease:
            for url in services.values():
                http.put(url, json={"balance": 10}, headers=lease.headers()).raise_for_status()
        with Child(HOLDER, server.url, json.dumps(list(services.values()))) as holder:
            assert holder.line() == "read"
            holder.wait_until_stopped()
            with locks.hold("acct:7", wait=60) as lease:
                for url in services.values():
                    http.put(url, json={"balance": 100}, headers=lease.headers()).raise_for_status()
                holder.proceed()
                return {name: tuple(json.loads(holder.line())) for name in services}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_paused_holders_write_is_refused_and_the_successors_is_there(
    framework: str, services: dict[str, str], drama: dict[str, tuple[int, str]]
) -> None:
    status, text = drama[framework]
    assert status == 412, text
    problem = json.loads(text)
    assert problem["error"] == "STALE_TOKEN"
    assert (problem["resource"], problem["key"], problem["lockKey"]) == ("accounts", "7", "acct:7")
    assert int(problem["token"]) < int(problem["highestToken"])
    assert http.get(services[framework]).json() == {"balance": 100}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_without_enforce_the_same_write_overwrites_the_successors(
    framework: str, services: dict[str, str], drama: dict[str, tuple[int, str]]
) -> None:
    assert drama[f"{framework}-unfenced"][0] == 204
    assert http.get(services[f"{framework}-unfenced"]).json() == {"balance": 11}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({}, 428, "TOKEN_REQUIRED"),
        ({"Fencing-Token": "007"}, 400, "INVALID_TOKEN"),
        ({"Fencing-Token": "a.b.c"}, 401, "BAD_SEQUENCER"),
        ({"Fencing-Token": "7", "Fencing-Lock": "acct:8"}, 403, "TOKEN_NOT_FOR_THIS_KEY"),
    ],
)
def test_a_write_without_a_right_token_is_refused(
    framework: str, headers: dict[str, str], status: int, error: str, services: dict[str, str]
) -> None:
    before = http.get(services[framework]).text
    answer = http.put(services[framework], json={"balance": -1}, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert answer.headers["content-type"] == "application/problem+json"
    assert http.get(services[framework]).text == before


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_spelling_of_the_account_is_no_way_round_its_fence(framework: str, services: dict[str, str]) -> None:
    before = http.get(services[framework]).text
    url = services[framework].replace("/accounts/7", "/accounts/007")
    answer = http.put(url, json={"balance": -1}, headers={"Fencing-Token": "1"})
    assert answer.status_code in (404, 412, 422)
    assert http.get(services[framework]).text == before


def test_a_service_is_claimed_on_acquire_by_the_address_of_what_the_lock_guards(
    services: dict[str, str], server: Server
) -> None:
    url = services["fastapi"].replace("/accounts/7", "/accounts/9")
    with fencegate.sync.connect(server.url) as locks, locks.hold("acct:9", claim=[url]) as lease:
        older = {"Fencing-Token": str(lease.token - 1)}
        assert http.put(url, json={"balance": -1}, headers=older).status_code == 412
        assert http.put(url, json={"balance": 1}, headers=lease.headers()).status_code == 204
