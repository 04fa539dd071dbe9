"""The URL of a bucket: `s3://bucket/prefix?endpoint=…&region=…`, `az://container/prefix`, `gs://bucket/prefix`.

Credentials are not part of it: they come from the environment, as for every other program that uses the bucket.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate.core.names import check_path, repeats_an_option

_OPTIONS: Mapping[str, frozenset[str]] = {
    "s3": frozenset({"endpoint", "region", "virtual_hosted"}),
    "az": frozenset({"endpoint", "account"}),
    "gs": frozenset({"endpoint"}),
}
_ALIASES = {"azure": "az"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
MAX_PREFIX = 256


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """Where objects are kept; `prefix` has no slash at its ends."""

    scheme: str
    bucket: str
    prefix: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, resource: str, url: str) -> Self:
        """UnsafeConfiguration says what is wrong, and never repeats what may be a secret."""

        def wrong(detail: str) -> UnsafeConfiguration:
            return UnsafeConfiguration(f"resource {resource!r}: {detail}")

        parts = urlsplit(url)
        scheme = _ALIASES.get(parts.scheme, parts.scheme)
        if scheme not in _OPTIONS:
            raise wrong("a bucket's URL is s3://bucket/prefix, az://container/prefix or gs://bucket/prefix")
        if "@" in parts.netloc or parts.fragment:
            raise wrong("a bucket's URL holds no credentials: set them in the environment (AWS_ACCESS_KEY_ID, …)")
        if not parts.netloc:
            raise wrong(f"its URL names no bucket: {scheme}://bucket/prefix")
        if repeats_an_option(url):
            raise wrong("its URL gives an option twice; give each of them once")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options:
            if name not in _OPTIONS[scheme]:
                allowed = ", ".join(sorted(_OPTIONS[scheme]))
                raise wrong(f"{name[:32]!r} is not an option of a {scheme} URL; there are {allowed}")
        endpoint = options.get("endpoint")
        if endpoint is not None and not _is_endpoint(endpoint):
            raise wrong("endpoint must be like http://127.0.0.1:9000 or https://host, without credentials")
        return cls(scheme, parts.netloc, _prefix(unquote(parts.path), wrong), options)

    @property
    def endpoint(self) -> str | None:
        return self.options.get("endpoint")


def _prefix(path: str, wrong: Callable[[str], UnsafeConfiguration]) -> str:
    prefix = path.strip("/")
    if not prefix:
        return ""
    try:
        check_path("prefix", prefix, MAX_PREFIX)
    except InvalidInput as error:
        raise wrong(error.detail) from None
    if not _PLAIN.issuperset(prefix):
        raise wrong("the prefix is made of letters, digits, '-', '_', '.' and '/'")
    return prefix


def _is_endpoint(text: str) -> bool:
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and not parts.query
