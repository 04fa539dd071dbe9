"""What is made of the refusals of an ACL, as servers of different versions word them."""

import pytest

from fencegate.redis_acl import is_forbidden, is_login_refused, lacking

VALKEY = "NOPERM ACL failure in script: User locks has no permissions to run the 'zadd' command"
REDIS_7 = "ERR ACL failure in script: User locks has no permissions to run the 'zadd' command"
REDIS_6 = "The user executing the script can't run this command or subcommand"
KEY_7 = "ERR ACL failure in script: No permissions to access a key"
KEY_6 = "The user executing the script can't access at least one of the keys mentioned in the command arguments"


@pytest.mark.parametrize("refusal", [VALKEY, REDIS_7, REDIS_6])
def test_a_command_that_is_forbidden_is_named(refusal: str) -> None:
    told = lacking([(b"ZADD", b"p:index", refusal.encode()), ("ZADD", "p:keep", refusal)], "locks", ["p:"])
    assert told == "(NOPERM): command 'zadd'. ACL SETUSER locks +zadd"


@pytest.mark.parametrize("refusal", [KEY_7, KEY_6])
def test_a_key_that_is_forbidden_is_named_with_the_prefix_to_allow(refusal: str) -> None:
    told = lacking([(b"ZADD", b"fencegate:index", refusal.encode())], "", ["fencegate:", ""])
    assert told == "(NOPERM): key 'fencegate:index'. ACL SETUSER default ~fencegate:*"


@pytest.mark.parametrize("refusal", ["ERR syntax error", "WRONGTYPE Operation against a key", "OOM command"])
def test_what_has_another_reason_is_no_matter_of_the_acl(refusal: str) -> None:
    assert not is_forbidden(refusal)
    assert lacking([(b"SET", b"p:k", refusal.encode())], "locks", ["p:"]) == ""


def test_a_server_that_is_full_or_not_ready_has_not_refused_the_login() -> None:
    assert not is_login_refused("ERR max number of clients reached")
    assert is_login_refused("WRONGPASS invalid username-password pair or user is disabled.")
    assert is_login_refused("ERR AUTH <password> called without any password configured for the default user.")
