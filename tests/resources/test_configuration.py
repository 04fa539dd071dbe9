"""The configuration file: what it may say, and what is said about what is wrong with it, and on which line."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencegate import settings as fencegate_settings
from fencegate.clock import SYSTEM
from fencegate.config_file import filled_in
from fencegate.core.errors import FencegateError, UnsafeConfiguration
from fencegate.gateway import Gateway
from fencegate.gateway.resources import (
    BucketSettings,
    FolderSettings,
    HashSettings,
    ResourceSettings,
    SqlSettings,
    StringSettings,
    UpstreamSettings,
)
from fencegate.settings import Settings
from fencegate.toml_lines import lines_of
from tests.real import seaweed
from tests.real.postgres import PostgresServer
from tests.resources.databases import Postgresql
from tests.resources.redis_fixtures import redis_server, redis_url
from tests.servers import MakeServer

__all__ = ["redis_server", "redis_url"]

SECRET = "hunter2"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fencegate.toml"


def read(file: Path, text: str) -> Settings:
    file.write_text(text, encoding="utf-8")
    return fencegate_settings.read(config=file)


def refusal(file: Path, text: str) -> str:
    with pytest.raises(UnsafeConfiguration) as refused:
        read(file, text)
    assert SECRET not in refused.value.detail
    return refused.value.detail


# --- what it may say -------------------------------------------------------------------------------------------------


def test_resources_of_every_kind_are_told_apart_by_their_urls(file: Path) -> None:
    made = read(
        file,
        """
        [resources.a]
        url = "postgresql://app@db/app"
        table = "accounts"
        key = ["tenant", "id"]
        guard = "acct:{tenant}"
        lock_timeout = "500ms"
        [resources.b]
        url = "mariadb://app@db/app"
        table = "accounts"
        key = "id"
        token_column = "token"
        [resources.c]
        url = "s3://bucket/prefix?endpoint=http://127.0.0.1:9000"
        layout = "pointer"
        max_bytes = 2_000_000_000
        timeout = 90
        [resources.d]
        url = "redis://cache/0"
        [resources.e]
        url = "rediss://cache/1"
        values = "hashes"
        mode = "shadow"
        [resources.f]
        url = "http://127.0.0.1:9000/base"
        upstream_checks = true
        [[resources.f.routes]]
        path = "/accounts/{id}/*"
        methods = ["PUT", "POST"]
        guard = "acct:{id}"
        [resources.g]
        url = "file:///srv/reports"
        [resources.h]
        url = "az://container/prefix"
        [resources.i]
        url = "gs://bucket/prefix"
        """,
    )
    found = {name: type(each) for name, each in made.resources.items()}
    assert found == {
        "a": SqlSettings,
        "b": SqlSettings,
        "c": BucketSettings,
        "d": StringSettings,
        "e": HashSettings,
        "f": UpstreamSettings,
        "g": FolderSettings,
        "h": BucketSettings,
        "i": BucketSettings,
    }
    assert {name: each.kind for name, each in made.resources.items()} == {
        **dict.fromkeys("abe", "rows"),
        **dict.fromkeys("cdghi", "objects"),
        "f": "upstream",
    }
    a, c = made.resources["a"], made.resources["c"]
    assert isinstance(a, SqlSettings)
    assert (a.key_columns, a.lock_timeout_s, a.guard_rule.lock_key(("acme", "7"))) == (
        ("tenant", "id"),
        0.5,
        "acct:acme",
    )
    assert (c.timeout_s, c.max_bytes) == (90, 2_000_000_000)


def test_the_fence_of_a_service_is_in_the_data_folder_unless_it_is_named(file: Path, tmp_path: Path) -> None:
    text = f'data = "{tmp_path}/data"\n[resources.api]\nurl = "http://127.0.0.1:9000"\n'
    api = read(file, text).resources["api"]
    assert isinstance(api, UpstreamSettings)
    assert api.fence == f"sqlite:///{tmp_path}/data/api.fence.db"
    assert read(file, text).folder == tmp_path / "data"
    named = read(file, text + 'fence = "postgresql://app@db/fences"\n')
    assert named.folder is None


@pytest.mark.parametrize("url", ["${SERVICE}", "${SCHEME}://127.0.0.1:9000", "HTTP://127.0.0.1:9000"])
def test_so_it_is_however_the_url_is_spelt(
    file: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE", "http://127.0.0.1:9000")
    monkeypatch.setenv("SCHEME", "https")
    api = read(file, f'data = "{tmp_path}"\n[resources.api]\nurl = "{url}"\n').resources["api"]
    assert isinstance(api, UpstreamSettings)
    assert api.fence == f"sqlite:///{tmp_path}/api.fence.db"


@pytest.mark.parametrize("name", ["100%20", "what?", "c#"])
def test_a_data_folder_that_a_url_would_spell_otherwise_is_refused(file: Path, tmp_path: Path, name: str) -> None:
    """Else locks and rows would be looked for in two places, of which one may even be there."""
    folder = tmp_path / name
    for text in ("", '[resources.api]\nurl = "http://127.0.0.1:9000"\n'):
        file.write_text(f'store = "memory://"\n{text}')
        with pytest.raises(UnsafeConfiguration, match="which URLs can't hold"):
            fencegate_settings.read(config=file, data=folder)
    file.write_text('[resources.x]\nurl = "sqlite:////elsewhere.db"\n')
    with pytest.raises(UnsafeConfiguration, match="which URLs can't hold"):
        fencegate_settings.read(config=file, data=folder)
    file.write_text('store = "memory://"\n[resources.x]\nurl = "sqlite:////elsewhere.db"\n')
    assert fencegate_settings.read(config=file, data=folder).folder is None  # nothing is in it


def test_documents_of_two_names_share_a_database(file: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    made = read(file, f'[resources.a]\nurl = "{url}"\n[resources.b]\nurl = "{url}"\n')
    assert set(made.resources) == {"a", "b"}


# --- what is wrong, and where ----------------------------------------------------------------------------------------

WRONG: dict[str, tuple[int, str]] = {
    'lisen = "127.0.0.1:0"': (1, "'lisen' is not a setting here; did you mean 'listen'?"),
    "\n\nlisten = 5": (3, "listen: must be a string"),
    'listen = "nowhere"': (1, "HOST:PORT"),
    '\nlisten = ""': (2, "listen: is empty"),
    '\nrole = ""': (2, "role: is empty"),
    '\ndata = ""': (2, "data: is empty"),
    '# a\n\nrole = "king"': (3, "king"),
    "[locks]\nhistory = '7d'\nmax_waiters = 0": (3, "max_waiters"),
    "[locks]\nmax_waiter = 9": (2, "max_waiters"),
    "locks = 5": (1, "[locks]"),
    "store = 5": (1, "store"),
    "\nstore = 0": (2, "store"),
    "\nstore = false": (2, "store"),
    "\nstore = []": (2, "store"),
    "\nstore = {}": (2, "store"),
    '\nstore = ""': (2, "store"),
    '[store]\n"*" = "sqlite:////tmp/l.db"\n"orders:" = "nowhere"': (3, "orders:"),
    '[store]\n"orders:*" = "redis://a"': (2, "orders:"),
    '# locks\nstore = "gopher://app:hunter2@db"': (2, "'gopher' is not supported"),
    '[store]\n"*" = "redis://a"\n"orders:" = "gopher://app:hunter2@db"': (3, "'gopher' is not supported"),
    "\nresources = 5": (2, "[resources.accounts]"),
    "[resources]\n\na = 5": (3, "table of its own"),
    '[resources.a]\nmode = "enforce"': (1, "has no url"),
    "[resources.a]\nurl = 5": (2, "url"),
    '[resources.a]\nurl = ""': (2, "url"),
    '[resources.a]\nurl = "/var/lib/x"': (2, "url"),
    '[resources.a]\nurl = "postgres://app:hunter2@db/app"': (2, "did you mean 'postgresql'?"),
    '[resources.a]\nurl = "gopher://app:hunter2@db/app"': (2, "'gopher' is not supported"),
    '[resources.a]\nurl = "sqlite:///a.db"\nmode = "maybe"': (3, "mode: must be one of 'enforce', 'shadow'"),
    '[resources.a]\nurl = "s3://bucket/a"\nlayout = "raw"': (3, "layout: must be one of 'framed', 'pointer'"),
    '[resources.a]\nurl = "sqlite://"': (2, "name a file"),
    '[resources.a]\nurl = "sqlite:///:memory:"': (2, "name a file"),
    '[resources.a]\nurl = "sqlite:///x.db?mode=ro"': (2, "has no options"),
    '[resources.a]\nurl = "sqlite:///x.db"\n[resources.b]\nurl = "sqlite:///file:x.db?uri=true"': (4, "has no options"),
    '[resources.a]\nurl = "mariadb://app:hunter2@[db/app"': (2, "url"),
    '[resources.a]\nurl = "redis://app:hunter2@[h/0"': (2, "url"),
    '[resources.a]\nurl = "s3:///prefix"': (2, "bucket"),
    '[resources.a]\nurl = "file://host/x"': (2, "file:///"),
    '[resources.a]\nurl = "file:///x%00y"': (2, "file:///"),
    '[resources.a]\nurl = "file:///x"\n\nlayout = "pointer"': (4, "layout"),
    '[resources.a]\nurl = "s3://b/p"\nlayout = "raw"': (3, "layout"),
    '[resources.a]\nurl = "redis://h/0"\nvalues = "lists"': (3, "'hashes'"),
    '[resources.a]\nurl = "redis://h/0"\nlayout = "framed"': (3, "'layout' is not a setting here"),
    '[resources.a]\nurl = "sqlite:///x.db"\nlayout = "framed"': (3, "'layout' is not a setting here"),
    '[resources.a]\nurl = "sqlite:///x.db"\ngaurd = "job:x"': (3, "did you mean 'guard'?"),
    '[resources.a]\nurl = "sqlite:///x.db"\nguard = "job:{tenant}"': (3, "{tenant}"),
    '[resources.a]\nurl = "sqlite:///x.db"\nguard = "job:{"': (3, "braces"),
    '[resources.a]\nurl = "sqlite:///x.db"\nguard = ""': (3, "is no lock key: must not be empty"),
    '[resources.a]\nurl = "sqlite:///x.db"\nguard = "job/../{key}"': (3, "is no lock key"),
    '[resources.a]\nurl = "sqlite:///x.db"\nguard = "job\\n{key}"': (3, "control characters"),
    '[resources.a]\nurl = "sqlite:///x.db"\ntable = "t"': (3, "key columns"),
    '[resources.a]\nurl = "sqlite:///x.db"\nkey = ["id"]': (3, "table and key"),
    '[resources.a]\nurl = "sqlite:///x.db"\ntable = "t"\nkey = ["id", 5]': (4, "key"),
    '[resources.a]\nurl = "sqlite:///x.db"\ntable = "t"\nkey = ["id", "id"]': (4, "twice"),
    '[resources.a]\nurl = "sqlite:///x.db"\ntoken_column = "t"': (3, "token_column"),
    '[resources.a]\nurl = "sqlite:///x.db"\nmax_bytes = 0': (3, "max_bytes"),
    '[resources.a]\nurl = "sqlite:///x.db"\nmax_bytes = "1"': (3, "max_bytes"),
    '[resources.a]\nurl = "sqlite:///x.db"\nmax_bytes = 1.5': (3, "max_bytes"),
    '[resources.a]\nurl = "sqlite:///x.db"\ntimeout = "soon"': (3, "timeout"),
    '[resources.a]\nurl = "sqlite:///x.db"\ntimeout = nan': (3, "timeout"),
    '[resources.a]\nurl = "sqlite:///x.db"\ntimeout = 0': (3, "timeout"),
    '[resources.a]\nurl = "sqlite:///x.db"\ntimeout = inf': (3, "timeout"),
    '[resources.a]\nurl = "sqlite:///x.db"\nlock_timeout = "-1s"': (3, "lock_timeout"),
    '[resources.a]\nurl = "sqlite:///x.db"\nmode = "off"': (3, "mode"),
    '[resources.a]\nurl = "sqlite:///x.db"\nissuer = "yes"': (3, "issuer"),
    '[resources.a]\nurl = "sqlite:///x.db"\nname = "b"': (3, "'name' is not a setting"),
    '[resources.a]\nurl = "sqlite:///x.db"\norigin = "b"': (3, "'origin' is not a setting"),
    '[resources."a/b"]\nurl = "sqlite:///x.db"': (1, "a name is"),
    '[resources.a]\nurl = "http://h/"\n[[resources.a.routes]]\npath = "/"\n[[resources.a.routes]]\npth = 1': (6, "pth"),
    '[resources.a]\nurl = "http://h/"\n[[resources.a.routes]]\npath = "/{id}"\nmethods = [5]': (5, "methods"),
    '[resources.a]\nurl = "http://h/"\n[[resources.a.routes]]\npath = "/{id}"\nguard = "x:{ident}"': (3, "ident"),
    '[resources.a]\nurl = "http://h/"\n[[resources.a.routes]]\npath = "/{id}"\nguard = ""': (3, "must not be empty"),
    '[resources.a]\nurl = "http://h/"\nfence = ""': (3, "name a file"),
    '[resources.a]\nurl = "http://h/"\nfence = "sqlite://"': (3, "name a file"),
    '[resources.a]\nurl = "http://h/"\nfence = "sqlite:///f.db?nolock=1&uri=true"': (3, "has no options"),
    '[resources.a]\nurl = "http://h/"\nfence = "redis://:hunter2@h"': (3, "can't be in redis"),
    '[resources.a]\nurl = "http://h/"\nfence = "mysql://u:hunter2@db:port/a"': (3, "of a database"),
    '[resources.a]\nurl = "http://h\\n/x"': (2, "control character"),
    '[resources.a]\nurl = "http://h/x\\t"': (2, "control character"),
    '[resources.a]\nurl = "http://good@evil/"': (2, "resource 'a'"),
    '[resources.a]\nurl = "http://u:hunter2@evil/"': (2, "resource 'a'"),
    '[resources.a]\nurl = "redis://:${NO_SUCH_VARIABLE}@h/0"': (2, "NO_SUCH_VARIABLE"),
    '[resources.a]\nurl = "redis://:${}@h/0"': (2, "names no variable"),
    '[resources.a]\nurl = "redis://:${NO_SUCH_VARIABLE@h/0"': (2, "has no '}'"),
    '[resources.a]\nurl = "redis://:${A{B}@h/0"': (2, "has no '}'"),
    'store = "redis://:${NO_SUCH_VARIABLE}@h/0"': (1, "NO_SUCH_VARIABLE"),
    'a = 1\na = 2\n': (2, "overwrite"),
    "a = \n": (1, "Invalid value"),
    '[resources.a]\nurl = "x': (2, "Unterminated"),
}  # fmt: skip


def test_a_port_that_is_none_is_told_when_the_resource_is_made(file: Path) -> None:
    resource = read(file, '[resources.a]\nurl = "postgresql://app:hunter2@db:port/app"\n').resources["a"]
    with pytest.raises(UnsafeConfiguration, match="of a database") as refused:
        resource.build()
    assert "hunter2" not in refused.value.detail


async def test_what_is_seen_only_in_the_resource_is_told_with_the_line_of_its_table(file: Path, tmp_path: Path) -> None:
    (tmp_path / "no.db").write_bytes(b"no database at all" * 100)
    missing = f'\n[resources.a]\nurl = "sqlite:///{tmp_path}/app.db"\ntable = "missing"\nkey = "id"\n'
    broken = f'\n\n[resources.b]\nurl = "http://127.0.0.1:9"\nfence = "sqlite:///{tmp_path}/no.db"\n'
    for text, place in ((missing, "2: resource 'a': "), (broken, "3: resource 'b': ")):
        with pytest.raises(FencegateError) as refused:
            await Gateway(read(file, text).resources, SYSTEM).open()
        assert refused.value.detail.startswith(f"{file}:{place}")


@pytest.mark.parametrize("below", ["", "/x", "/x/y"])
async def test_a_file_in_the_place_of_a_folder_is_a_wrong_setting(file: Path, tmp_path: Path, below: str) -> None:
    (tmp_path / "data").touch()
    made = read(file, f'[resources.a]\nurl = "file://{tmp_path}/data{below}"\n')
    with pytest.raises(UnsafeConfiguration, match="is not a folder") as refused:
        await Gateway(made.resources, SYSTEM).open()
    assert refused.value.detail.startswith(f"{file}:1: resource 'a': ")


@pytest.mark.parametrize("text", WRONG, ids=str)
def test_what_is_wrong_is_told_with_its_line(file: Path, text: str) -> None:
    line, says = WRONG[text]
    told = refusal(file, text)
    assert told.startswith(f"{file}:{line}: "), told
    assert says in told


@pytest.mark.parametrize(
    "url", ["sqlite:////tmp/app.db", "postgresql://app@db/app", "postgresql://another:hunter2@DB/app?sslmode=require"]
)
def test_one_table_has_one_lock(file: Path, url: str) -> None:
    first = "postgresql://app:hunter2@db/app" if url.startswith("postgresql") else url
    resource = '[resources.{}]\nurl = "{}"\ntable = "t"\nkey = "id"\n'
    told = refusal(file, resource.format("a", first) + resource.format("b", url))
    assert told.startswith(f"{file}:5: resource 'b'")
    assert "two locks" in told


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://h/0?prefix=a:", "rediss://h:6379?replicas=1&prefix=a:"),
        ("redis://h", "redis://H:6379/0?replicas=1"),
        ("az://c/p", "azure://c/p/"),
        ("s3://b/p?endpoint=http://h&region=a", "s3://b/p?region=b&virtual_hosted=true&endpoint=http://h"),
        ("http://h/base", "http://h:80/base/"),
    ],
)
def test_one_thing_has_one_lock_however_its_url_is_spelt(file: Path, one: str, other: str) -> None:
    told = refusal(file, f'[resources.a]\nurl = "{one}"\n[resources.b]\nurl = "{other}"\n')
    assert told.startswith(f"{file}:3: resource 'b'")
    assert "two locks" in told


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("s3://b/a", "s3://b/a/b"),
        ("s3://b/a/", "s3://b/a/b/c/"),
        ("s3://b", "s3://b/a"),
        ("s3://b/?endpoint=http://h/", "s3://b/a?region=x&endpoint=http%3A//h"),
        ("s3://b/a", "s3://b/%61/b"),
        ("az://c/a", "azure://c/a/b"),
        ("gs://b", "gs://B/a"),
        ("file:///srv/data", "file:///srv/data/x"),
        ("file:///srv/data/", "file:///srv/other/../data/x"),
        ("file:///srv/d%61ta", "file:///srv/data//x"),
        ("file:///", "file:///srv"),
        ("redis://h", "redis://h/0?prefix=a:"),
        ("redis://h?prefix=a:", "redis://h?prefix=a%3Ab:"),
        ("http://h", "http://h:80/a"),
        ("http://h/a", "http://h/a/b/"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_one_thing_that_lies_inside_another_is_refused(file: Path, outer: str, inner: str, order: int) -> None:
    a, b = (outer, inner)[::order]
    told = refusal(file, f'[resources.a]\nurl = "{a}"\n[resources.b]\nurl = "{b}"\n')
    assert told.startswith(f"{file}:3: resource 'b'")
    assert ("lies inside 'a'" if order == 1 else "'a' lies inside it") in told
    assert "two locks" in told


def test_a_folder_is_known_by_another_name_too(file: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for path, says in (("link", "is the same data as 'a'"), ("link/below", "lies inside 'a'")):
        told = refusal(
            file, f'[resources.a]\nurl = "file://{tmp_path}/data"\n[resources.b]\nurl = "file://{tmp_path}/{path}"\n'
        )
        assert says in told


def test_a_file_of_sqlite_is_known_by_another_name_too(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "app.db")
    monkeypatch.chdir(tmp_path)
    resource = '[resources.{}]\nurl = "sqlite:///{}"\ntable = "t"\nkey = "id"\n'
    for other in ("app.db", f"../{tmp_path.name}/app.db", f"{tmp_path}/link.db"):
        assert "two locks" in refusal(file, resource.format("a", tmp_path / "app.db") + resource.format("b", other))


@pytest.mark.parametrize("resource", ['url = "sqlite:///{}"', 'url = "http://127.0.0.1:9"\nfence = "sqlite:///{}"'])
@pytest.mark.parametrize(
    "store", ["", 'store = "sqlite:///{}/own.db"', 'store = {{ "a:" = "sqlite:///{}/own.db", "*" = "memory://" }}']
)
def test_the_file_of_a_lock_store_is_no_place_for_a_resource(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resource: str, store: str
) -> None:
    monkeypatch.chdir(tmp_path)
    taken = "own.db" if store else ".fencegate/locks.db"
    told = refusal(file, f"{store.format(tmp_path)}\n[resources.a]\n{resource.format(taken)}\n")
    assert told.startswith(f"{file}:2: resource 'a': ")
    assert "lock store" in told


@pytest.mark.parametrize(
    ("url", "schema"), [("sqlite:////tmp/a.db", "main"), ("postgresql://db/app", "public"), ("mysql://db/app", "app")]
)
def test_a_table_is_known_with_its_schema_too(file: Path, url: str, schema: str) -> None:
    resource = '[resources.{}]\nurl = "{}"\ntable = "{}"\nkey = "id"\n'
    first = resource.format("a", url, "t")
    assert "two locks" in refusal(file, first + resource.format("b", url, f"{schema}.t"))
    assert set(read(file, first + resource.format("b", url, "another.t")).resources) == {"a", "b"}


def test_one_table_has_one_lock_by_either_name_of_mysql(file: Path) -> None:
    resource = '[resources.{}]\nurl = "{}"\ntable = "t"\nkey = "id"\n'
    told = refusal(file, resource.format("a", "mysql://app@db/app") + resource.format("b", "mariadb://app@db:3306/app"))
    assert "two locks" in told


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://h/0?prefix=a:", "redis://h/0?prefix=b:"),
        ("redis://h/0", "redis://h/1"),
        ("redis://h", "redis://h:6380"),
        ("az://c/p?account=a", "az://c/p?account=b"),
        ("http://h/a", "http://h/b"),
        ("http://h/a", "http://h/ab"),
        ("s3://b/a", "s3://b/ab"),
        ("s3://b/a", "s3://c/a/b"),
        ("s3://b/a?endpoint=http://h", "s3://b/a/b?endpoint=http://i"),
        ("s3://b/a", "gs://b/a/b"),
        ("file:///srv/a", "file:///srv/ab"),
        ("file:///srv/a", "file:///srv/b"),
        ("redis://h?prefix=a:", "redis://h/1?prefix=a:b:"),
    ],
)
def test_what_differs_may_have_two_names(file: Path, one: str, other: str) -> None:
    made = read(file, f'[resources.a]\nurl = "{one}"\n[resources.b]\nurl = "{other}"\n')
    assert set(made.resources) == {"a", "b"}


def test_a_file_with_the_mark_that_some_editors_put_before_the_text_is_read(file: Path) -> None:
    made = read(file, '\ufeff[resources.a]\nurl = "file:///var/lib/a"\n')
    assert set(made.resources) == {"a"}


def test_what_is_not_a_text_file_is_refused(file: Path) -> None:
    for content, says in (
        (b"\n\xff\xfe", ":2: is not UTF-8"),
        (b"#" * 2_000_000, "bytes"),
        (b"a=" + b"[" * 99_999, ""),
    ):
        file.write_bytes(content)
        with pytest.raises(UnsafeConfiguration) as refused:
            fencegate_settings.read(config=file)
        assert refused.value.detail.startswith(str(file))
        assert says in refused.value.detail
    with pytest.raises(UnsafeConfiguration, match="No such file"):
        fencegate_settings.read(config=file.with_name("missing"))


def test_a_flag_or_a_variable_is_not_blamed_on_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('listen = "127.0.0.1:0"\n[locks]\nmax_waiters = 5\n')
    with pytest.raises(UnsafeConfiguration) as refused:
        fencegate_settings.read(config=file, listen="nowhere")
    assert str(file) not in refused.value.detail
    monkeypatch.setenv("FENCEGATE_MAX_WAITERS", "0")
    with pytest.raises(UnsafeConfiguration) as refused:
        fencegate_settings.read(config=file)
    assert str(file) not in refused.value.detail


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [
        name for name in sys.modules if name == "redis" or name.startswith(("redis.", "fencegate_adapters.redis"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UnsafeConfiguration, match=r"pip install 'fencegate\[redis\]'"):
        ResourceSettings.of("a", {"url": "redis://h/0"}).build()


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_come_from_variables_and_from_files(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("p@ss/w:rd\n")
    monkeypatch.setenv("DB_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("CACHE_URL", "redis://:x@cache/0")
    monkeypatch.setenv("LOCKS", "redis://locks")
    made = read(
        file,
        'store = {"orders:" = "${LOCKS}/1", "*" = "${LOCKS}"}\n'
        '[resources.a]\nurl = "postgresql://app:${DB_PASSWORD}@db/app"\n[resources.b]\nurl = "${CACHE_URL}"\n'
        '[resources.c]\nurl = "http://h"\nfence = "postgresql://f:${DB_PASSWORD}@db/fences"\n',
    )
    assert made.resources["a"].url == "postgresql://app:p%40ss%2Fw%3Ard@db/app"
    assert made.resources["b"].url == "redis://:x@cache/0"
    assert made.store.url_of("orders:1") == "redis://locks/1"
    service = made.resources["c"]
    assert isinstance(service, UpstreamSettings)
    assert service.fence == "postgresql://f:p%40ss%2Fw%3Ard@db/fences"


@pytest.mark.parametrize(
    ("url", "made"),
    [
        ("redis://:${V}@h/0", "redis://:a%40b%3Ac%2Fd%3F@h/0"),
        ("redis://${V}:${V}@h/0", "redis://a%40b%3Ac%2Fd%3F:a%40b%3Ac%2Fd%3F@h/0"),
        ("redis://h/0?password=${V}", "redis://h/0?password=a%40b%3Ac%2Fd%3F"),
        ("${V}", "a@b:c/d?"),
        ("redis://${V}/0", "redis://a@b:c/d?/0"),
        ("no reference", "no reference"),
    ],
)
def test_only_what_must_be_escaped_is(url: str, made: str) -> None:
    assert filled_in(url, "url", {"V": "a@b:c/d?"}.get) == made


# --- the page --------------------------------------------------------------------------------------------------------


def example() -> str:
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text(encoding="utf-8")
    return page.partition("```toml\n")[2].partition("```")[0]


def test_the_example_of_the_page_is_served(
    tmp_path: Path, postgres_server: PostgresServer, redis_url: str, seaweed_url: str, make_server: MakeServer
) -> None:
    database = Postgresql(postgres_server)
    database.execute("CREATE TABLE accounts (tenant text, id bigint, balance bigint, PRIMARY KEY (tenant, id))")
    replaced = {
        "127.0.0.1:7420": "127.0.0.1:0",
        "postgresql://fencegate:${DB_PASSWORD}@db/locks": "${LOCKS}",
        "postgresql://app:${DB_PASSWORD}@db/app": database.url.replace("fencegate@", "fencegate:${DB_PASSWORD}@"),
        "/var/lib/fencegate": str(tmp_path),
        "s3://company-reports/eu?region=eu-central-1": seaweed_url,
        "redis://:${REDIS_PASSWORD}@cache:6379/0?": f"{redis_url}?",
    }
    text = example()
    for ours, theirs in replaced.items():
        assert ours in text
        text = text.replace(ours, theirs)
    (tmp_path / "fencegate.toml").write_text(text)
    (tmp_path / "password").write_text("not asked for")
    server = make_server(
        "data",
        "--config",
        str(tmp_path / "fencegate.toml"),
        LOCKS=f"sqlite:///{tmp_path}/locks.db",
        DB_PASSWORD_FILE=str(tmp_path / "password"),
        AWS_ACCESS_KEY_ID=seaweed.ACCESS_KEY,
        AWS_SECRET_ACCESS_KEY=seaweed.SECRET_KEY,
    )
    fences = {
        path: httpx.get(f"{server.url}/v1/fences/{path}", timeout=60).json()
        for path in ("accounts/acme/7", "carts/7", "reports/a/b", "sessions/x", "billing/accounts/7/orders")
    }
    assert [fence["lockKey"] for fence in fences.values()] == [
        "acct:acme",
        "carts:7",
        "reports:a/b",
        "sessions:x",
        "acct:7",
    ]
    guarantees = [fence["guarantee"] for fence in fences.values()]
    assert guarantees == ["atomic", "atomic", "best-effort", "atomic", "best-effort"]  # the third is a shadow
    assert fences["reports/a/b"]["mode"] == "shadow"
    put = httpx.put(
        f"{server.url}/v1/resources/accounts/acme/7", json={"balance": "1"}, headers={"Fencing-Token": "34"}, timeout=60
    )
    assert put.status_code == 201, put.text
    assert database.fetch("SELECT balance FROM accounts") == [(1,)]


# --- lines -----------------------------------------------------------------------------------------------------------

TRICKY = '''
a."b.c".'d'."e\\"f" = 1 # x = 2
[t . "u]" ]
v = """
x = 1
[no]
\\""" still"""""
w = \'\'\'it's\'\'\'\'\'
[[r]]
x = 1979-05-27 07:32:00 # y
[[r.s]]
y = { a = 1, b.c = [1, {d = "}"}, # no
  2] }
[r.q]
z = -inf
[[r]]
[[r.s]]
m = [ [1, 2], ["]", '['] , ]
'''


def test_the_line_of_everything_in_a_tricky_file_is_found() -> None:
    found = lines_of(TRICKY)
    assert set(found) == set(_places(tomllib.loads(TRICKY)))
    assert found["a", "b.c", "d", 'e"f'] == 2
    assert found["t", "u]", "w"] == 8
    assert found["r", 0, "s", 0, "y", "b", "c", 2] == 13
    assert found["r", 1, "s", 0, "m", 1] == 18


_names = st.text(st.sampled_from("ab.\"'\\#[]= \t\né"), max_size=4)
_texts = st.text(st.sampled_from("ab\"'\\#[]{}=,. \n"), max_size=8)
_scalars = st.one_of(st.integers(-9, 9), st.booleans(), _texts, st.just(1.5))
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3), max_leaves=8
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(_names, st.dictionaries(_names, _values, max_size=4), max_size=4), st.data())
def test_every_setting_of_any_file_is_on_the_line_where_it_was_written(
    tables: dict[str, dict[str, Any]], data: st.DataObject
) -> None:
    lines: list[str] = []
    where: dict[tuple[str, ...], int] = {}
    for name, table in tables.items():
        lines += ["# [comment]"] * data.draw(st.integers(0, 2))
        lines.append(f"[{_quoted(name)}]")
        where[(name,)] = len(lines)
        for key, value in table.items():
            where[name, key] = len(lines) + 1
            lines += f"{_quoted(key)} = {_toml(value, data)}".split("\n")
    text = "\n".join(lines)
    assert tomllib.loads(text) == tables
    found = lines_of(text)
    assert {place: found[place] for place in where} == where
    assert set(found) == set(_places(tables))


def _places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if at:
        yield at
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(each, (*at, key))


def _quoted(text: str) -> str:
    escaped = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(escaped.get(sign, sign) for sign in text) + '"'


def _toml(value: Any, data: st.DataObject) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)} = {_toml(each, data)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        between = data.draw(st.sampled_from([", ", ",\n", " , # ]\n"]))
        return "[" + between.join(_toml(each, data) for each in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    if data.draw(st.booleans()) and "'" not in value:
        return f"'''\n{value}'''"
    if data.draw(st.booleans()):
        return '"""\n' + value.replace("\\", "\\\\").replace('"', '\\"') + '"""'
    return _quoted(value)
