"""The bucket as obstore sees it: the only module that imports it, and the one in which its errors become ours.

Nothing is retried here that writes: a second attempt under the surface would be refused because the first one landed.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import certifi
import msgspec
import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from fencegate.core.errors import InvalidInput, ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.objects.bucket.outcomes import Moved, NotSent, Refused, Throttled, Unsettled
from fencegate_adapters.objects.bucket.url import BucketUrl

CONNECT_WITHIN = timedelta(seconds=5)
FOR_EVER = timedelta(days=7)
PART_BYTES = 5 * 1024 * 1024  # the least that S3 allows
PARTS_AT_ONCE = 3
SETTLE_S = 0.02
GET_TRIES = 2  # a connection that lay idle may have been closed by the server
MAX_PARTS = 9_000  # S3 allows 10,000

_STATUS = re.compile(r"status code: ([0-9]{3})")
_CONNECT = re.compile(r"kind: Connect\b")
# No key can bring these in by itself: `<` and spaces are escaped in ours.
_TOO_LONG = "<Code>KeyTooLongError</Code>"
_NO_BUCKET = ("<Code>NoSuchBucket<", "<Code>ContainerNotFound<", "The specified bucket does not exist")


class Store(Protocol):
    """What is asked of a bucket: the part of obstore's stores that is used here."""

    async def get_async(self, path: str, *, options: Any = ...) -> Any: ...
    async def put_async(
        self,
        path: str,
        file: bytes | Sequence[bytes] | AsyncIterator[bytes],
        *,
        attributes: Any = ...,
        mode: Any = ...,
        use_multipart: bool | None = ...,
        chunk_size: int = ...,
        max_concurrency: int = ...,
    ) -> Any: ...
    async def delete_async(self, paths: str) -> None: ...
    def list(
        self, prefix: str | None = ..., *, offset: str | None = ..., chunk_size: int = ...
    ) -> AsyncIterable[Sequence[Any]]: ...


Connect = Callable[[BucketUrl, dict[str, Any], dict[str, Any]], Store]
"""The bucket of a URL, with what obstore calls its client options and its retries."""


class Version(msgspec.Struct, frozen=True, gc=False):
    """What names one state of a key for a condition: stores use one or the other."""

    e_tag: str | None
    version: str | None


class Blob(NamedTuple):
    """The first bytes of what is under a key, the size of the whole, and which version it is."""

    data: bytes
    size: int
    version: Version


class Blobs:
    """Bytes under keys of one bucket and prefix."""

    def __init__(self, resource: str, url: BucketUrl, timeout_s: float, connect: Connect | None = None) -> None:
        self._connect = connect or _connect
        self._resource = resource
        self._url = url
        self._timeout = timedelta(seconds=timeout_s)
        self._once = self._connected(retries=0)
        self._is_obstores = isinstance(self._once, S3Store | AzureStore | GCSStore)

    @cached_property
    def _retrying(self) -> Store:
        """For what is long and may be sent twice: downloads, and bodies under keys of their own."""
        return self._connected(retries=2)

    def _connected(self, retries: int) -> Store:
        # A download takes as long as its reader does; only silence ends it.
        client: dict[str, Any] = {"timeout": FOR_EVER, "read_timeout": self._timeout}
        retry = {"max_retries": retries, "retry_timeout": self._timeout}
        try:
            try:
                return self._connect(self._url, client, retry)
            except BaseError as error:
                if "No CA certificates" not in str(error):
                    raise
                # As in slim images; it is needed to be built at all, even for an endpoint without TLS.
                return self._connect(self._url, client | {"root_certificate": _authorities()}, retry)
        except (BaseError, ValueError, TypeError) as error:
            raise UnsafeConfiguration(
                f"resource {self._resource!r}: the bucket can't be set up ({type(error).__name__}): check its URL and "
                "the credentials in the environment"
            ) from None

    async def get(self, key: str, first_bytes: int | None = None) -> Blob | None:
        """What is under `key`, or the first bytes of it; None when nothing is."""
        options: Any = {"range": (0, first_bytes)} if first_bytes is not None else {}
        for tries_left in reversed(range(GET_TRIES)):
            try:
                found = await self._once.get_async(key, options=options)
                data = bytes(await found.bytes_async())
                return Blob(data, found.meta["size"], _version(found.meta))
            except FileNotFoundError as error:
                self._require_bucket(error)
                break
            except BaseError as error:
                status = _STATUS.search(str(error))
                if status is not None and status[1] == "416":  # it is empty, and so has no first bytes
                    return Blob(b"", 0, Version(None, None))
                if not tries_left or status is not None:
                    raise self._unavailable(error) from None
        return None

    async def stream(self, key: str, start: int, end: int, version: Version | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` up to `end`, of this version or Moved; Moved also when nothing is there."""
        options: Any = {"range": (start, end)}
        if version is not None and version.e_tag is not None:
            options["if_match"] = version.e_tag
        with self._reads():
            try:
                found = await self._retrying.get_async(key, options=options)
            except (FileNotFoundError, PreconditionError) as error:
                raise Moved(key) from error
        return self._pieces(found, end - start)

    async def _pieces(self, found: Any, expected: int) -> AsyncIterator[bytes]:
        with self._reads():
            async for piece in found.stream(min_chunk_size=64 * 1024):
                expected -= len(piece)
                yield bytes(piece)
        if expected:
            raise ResourceUnavailable(
                f"resource {self._resource!r}: the object is cut off, {expected} bytes are missing"
            )

    def put(
        self, key: str, data: bytes | Sequence[bytes], expected: Version | None, content_type: str
    ) -> Awaitable[Version]:
        """Write if `key` still is at this version (None: absent). Raises Refused, NotSent or Unsettled.

        It is on its way when this returns, as far as the store allows.
        """
        mode: Any = "create" if expected is None else _update(expected)
        attributes = {"Content-Type": content_type}
        once: Any = self._once
        try:
            if self._is_obstores:  # their own method is a coroutine, which sends nothing before it is awaited
                sent = obstore.put_async(once, key, data, mode=mode, attributes=attributes, use_multipart=False)
            else:
                sent = once.put_async(key, data, mode=mode, attributes=attributes, use_multipart=False)
        except BaseError as error:
            raise self._put_failed(key, error) from None
        return self._landed(key, sent)

    async def _landed(self, key: str, sent: Awaitable[Any]) -> Version:
        try:
            done = await sent
        except (AlreadyExistsError, PreconditionError) as error:
            raise Refused(key) from error
        except FileNotFoundError as error:
            # S3 says so of a condition on a key that is gone.
            self._require_bucket(error)
            raise Refused(key) from error
        except BaseError as error:
            raise self._put_failed(key, error) from None
        return _version(done)

    async def upload(self, key: str, body: bytes | AsyncIterator[bytes], content_type: str, part_bytes: int) -> None:
        """Write under a key that nobody else uses; a long body goes in parts, a few of which are in memory."""
        with self._reads():
            await self._retrying.put_async(
                key,
                body,
                attributes={"Content-Type": content_type},
                use_multipart=not isinstance(body, bytes),
                chunk_size=part_bytes,
                max_concurrency=PARTS_AT_ONCE,
            )

    async def delete(self, key: str) -> None:
        with self._reads():
            try:
                await self._once.delete_async(key)
            except FileNotFoundError:
                return

    async def keys(self, within: str, after: str | None = None, page: int = 200) -> AsyncGenerator[str, None]:
        """The keys of a directory, those of directories below it too, in the server's order, behind `after`."""
        # Not all that speak Azure's protocol know where to begin (Azurite): they list in order, and from the beginning.
        skipped = after if after is not None and self._url.scheme == "az" else ""
        with self._reads():
            async for chunk in self._once.list(within.rstrip("/"), offset=after, chunk_size=page):
                for found in chunk:
                    if found["path"] > skipped:
                        yield found["path"]

    async def close(self) -> None:
        """obstore's threads may still be letting go of what the last call gave them, and an interpreter that ends at
        that moment is aborted (seen in short programs); there is no call that waits for them."""
        await asyncio.sleep(SETTLE_S)

    def _put_failed(self, key: str, error: BaseError) -> Exception:
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return self._unavailable(error)
        text = str(error)
        status = _STATUS.search(text)
        if status is not None and status[1] == "409":  # S3: another conditional write was under way
            return Refused(key)
        if status is not None and status[1] == "429":
            return Throttled(self._unavailable(error).detail)
        if status is not None and status[1].startswith("4") and status[1] != "408":
            return self._unavailable(error)
        return NotSent(key) if status is None and _CONNECT.search(text) else Unsettled(key)

    @contextmanager
    def _reads(self) -> Iterator[None]:
        """Errors of what changes no frame: nothing was written."""
        try:
            yield
        except BaseError as error:
            raise self._unavailable(error) from None

    def _require_bucket(self, error: FileNotFoundError) -> None:
        if any(word in str(error) for word in _NO_BUCKET):
            raise ResourceUnavailable(f"resource {self._resource!r}: there is no such bucket") from None

    def _unavailable(self, error: BaseError) -> ResourceUnavailable | InvalidInput:
        """Without the text of the error, which may hold addresses and what the server cares to say."""
        if _TOO_LONG in str(error):
            return InvalidInput("key", "is too long for the bucket's server; nothing was written")
        status = _STATUS.search(str(error))
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            reason = "the bucket refuses us: check the credentials and the bucket's policy"
        elif status is not None:
            reason = f"the bucket's server answered with status {status[1]}"
        else:
            reason = "the bucket's server can't be reached, broke off, or there are no credentials for it"
        return ResourceUnavailable(f"resource {self._resource!r}: {reason}; nothing was written")


def _connect(url: BucketUrl, client: dict[str, Any], retry: dict[str, Any]) -> Store:
    options: Any = {"connect_timeout": CONNECT_WITHIN, **client}
    if url.endpoint is not None and url.endpoint.startswith("http:"):
        options["allow_http"] = True
    names = {"endpoint": "endpoint", "region": "region", "account": "account_name"}
    config: Any = {names[name]: value for name, value in url.options.items() if name in names}
    more: Any = {"prefix": url.prefix or None, "client_options": options, "retry_config": retry}
    if url.scheme == "s3":
        # The environment could turn conditions off.
        config |= {
            "conditional_put": "etag",
            "virtual_hosted_style_request": url.options.get("virtual_hosted") == "true",
        }
        return S3Store(url.bucket, config=config, **more)
    if url.scheme == "az":
        return AzureStore(url.bucket, config=config, **more)
    service: Any = {"base_url": url.endpoint} if url.endpoint is not None else {}
    return GCSStore(url.bucket, config=service, **more)


@cache
def _authorities() -> bytes:
    return Path(certifi.where()).read_bytes()


def _version(found: Any) -> Version:
    return Version(found["e_tag"], found["version"])


def _update(expected: Version) -> dict[str, str]:
    e_tag, version = expected.e_tag, expected.version
    if e_tag is not None:
        return {"e_tag": e_tag} if version is None else {"e_tag": e_tag, "version": version}
    if version is None:
        raise UnsafeConfiguration("the bucket's server gives no ETags, so no write could depend on one")
    return {"version": version}
