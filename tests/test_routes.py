"""Routes: how they are written, and which store a lock key belongs to."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate import settings
from fencegate.core.errors import UnsafeConfiguration
from fencegate_lockservice.routes import Routes, without_secrets

TWO = ["orders:=redis://a", "*=postgresql://u:secret@b/locks?x=http://c"]


def test_a_url_by_itself_is_the_store_of_every_key() -> None:
    routes = Routes.of(["sqlite:////var/lib/my locks/a.db"])
    assert routes.only == routes.url_of("anything") == "sqlite:////var/lib/my locks/a.db"
    assert Routes.in_text("sqlite:////var/lib/my locks/a.db") == routes


def test_the_longest_prefix_wins_in_whatever_order_they_come() -> None:
    routes = Routes.of(["*=redis://c", "orders:=redis://a", "orders:eu:=redis://b"])
    assert routes.url_of("orders:eu:1") == "redis://b"
    assert routes.url_of("orders:us:1") == "redis://a"
    assert routes.url_of("order") == "redis://c"
    assert routes.only is None


def test_without_a_star_some_keys_have_no_store() -> None:
    routes = Routes.of(["orders:=redis://a"])
    assert routes.url_of("cart:1") is None
    assert routes.only is None


@pytest.mark.parametrize("between", [" ", "\n", "  \n ", "\t"])
def test_one_text_may_hold_several(between: str) -> None:
    assert Routes.in_text(between.join(TWO)) == Routes.of(TWO)
    assert Routes.in_text(Routes.of(TWO).as_text()) == Routes.of(TWO)


def test_a_table_is_the_same() -> None:
    table = {"orders:": "redis://a", "*": "postgresql://u:secret@b/locks?x=http://c"}
    assert Routes.in_table(table) == Routes.of(TWO)


def test_an_equals_sign_may_be_part_of_the_prefix_and_of_the_url() -> None:
    assert Routes.of(["a=b=redis://x?y=redis://z"]).urls == {"a=b": "redis://x?y=redis://z"}


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["orders:=redis://a", "orders:=redis://b"], "'orders:' is given twice"),
        (["redis://a", "redis://b"], "'*' is given twice"),
        (["orders:*=redis://a"], "write 'orders:'"),
        (["=redis://a"], "must not be empty"),
        (["a\x00b=redis://a"], "control characters"),
        (["orders:"], "neither a URL nor PREFIX=URL"),
        (["orders:=secret"], "neither a URL nor PREFIX=URL"),
        ([], "must name a store"),
        ([f"{n}:=redis://a" for n in range(101)], "at most 100"),
    ],
)
def test_what_is_wrong_is_said(texts: list[str], says: str) -> None:
    with pytest.raises(UnsafeConfiguration) as caught:
        Routes.of(texts)
    assert says in caught.value.detail
    assert "secret" not in caught.value.detail


@pytest.mark.parametrize("table", [{"a": 1}, {"a": "nowhere"}, {"a": {}}, {}])
def test_a_wrong_table_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(UnsafeConfiguration):
        Routes.in_table(table)


@pytest.mark.parametrize(
    "url",
    ["redis://:secret@a/0", "redlock://:secret@a:1,:secret@b:2", "mysql://u:se/c,r@secret@a/b", "etcd://a?pw=secret"],
)
def test_no_secret_is_shown(url: str) -> None:
    assert "se" not in without_secrets(url)
    assert "secret" not in Routes.of([f"a:={url}", "*=memory://"]).without_secrets()


_PREFIXES = st.text(st.sampled_from("ab:/"), min_size=1, max_size=4)


@given(st.dictionaries(_PREFIXES, st.sampled_from("xyz"), min_size=1, max_size=6), st.text("ab:/", max_size=6))
def test_every_key_below_a_prefix_belongs_to_one_of_the_stores_within_it(table: dict[str, str], prefix: str) -> None:
    routes = Routes.in_table({key: f"redis://{store}" for key, store in table.items()})
    within = routes.within(prefix)
    for rest in ("", "a", "b:", "/a", "ab:/"):
        url = routes.url_of(prefix + rest)
        assert url is None or url in within


def test_settings_take_flags_before_the_variable_before_the_file(tmp_path: Any, monkeypatch: Any) -> None:
    file = tmp_path / "fencegate.toml"
    file.write_text('[store]\n"orders:" = "redis://a"\n"*" = "redis://b"\n')
    assert settings.read(config=file).store == Routes.of(["orders:=redis://a", "*=redis://b"])
    monkeypatch.setenv("FENCEGATE_STORE", "x:=redis://c *=redis://d")
    assert settings.read(config=file).store == Routes.of(["x:=redis://c", "*=redis://d"])
    assert settings.read(config=file, store=["redis://e"]).store.only == "redis://e"
    file.write_text("store = 7")
    monkeypatch.delenv("FENCEGATE_STORE")
    with pytest.raises(UnsafeConfiguration):
        settings.read(config=file)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql:/u:hunter2@db/x",
        "redis:u:hunter2@h",
        "postgresql//u:hunter2@db/x",
        "orders:=postgresql:/u:hunter2@db/x",
    ],
)
def test_a_slip_of_the_pen_does_not_show_the_password(text: str) -> None:
    with pytest.raises(UnsafeConfiguration) as refused:
        Routes.of([text])
    assert "hunter2" not in str(refused.value)


def test_a_password_with_a_blank_in_it_is_not_shown() -> None:
    assert "ss" not in without_secrets("postgresql://u:pa ss@h/db")
    assert without_secrets("redis://h:6379/0") == "redis://h:6379/0"
