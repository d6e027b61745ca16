"""The object store: immutable objects, created once, and believed only after their sha256 was checked.

``ObjectStore("file:///data/objects")`` and ``ObjectStore("s3://bucket/prefix")`` behave the same. Nothing is ever
overwritten: an object's path names its content's version, and an event in the log points at it.

    manifest.json                  one request, which fails where the object exists
    model.safetensors.sha256       the claim of an object that is larger than one request, and created likewise
    model.safetensors              the claimed content and no other, in parts

A store makes an object of parts without asking whether it exists, so the claim decides who may write: `sha256sum -c`
can read it. Whoever has the claimed content writes the same bytes as another, and a different content is refused
before any of it was sent.
"""

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from headrace.trainer.weights.store_url import scheme_of
from headrace.trainer.weights.unavailable import StoreUnsuitable, is_without_bucket, unavailable

if TYPE_CHECKING:  # they exist in the type stubs alone
    from obstore.store import ClientConfig, RetryConfig

MAX_OBJECT_BYTES = 64 * 1024**3
"""Largest object that is written or read, in bytes; a size stated by a manifest narrows it. S3 takes 10,000 parts."""

REQUEST_BYTES = 64 * 1024**2
"""Most that one request carries, either way. S3 takes parts of 5 MiB to 5 GiB."""

_REQUESTS_AT_ONCE = 4
"""Parts in flight: so many times ``REQUEST_BYTES`` are held in memory."""

_CLAIM_SUFFIX = ".sha256"

_CLIENT: "ClientConfig" = {
    "connect_timeout": timedelta(seconds=5),
    "timeout": timedelta(minutes=5),
    "allow_http": True,
}
"""Of a request: its 64 MiB in 5 minutes need 0.2 MB/s. Without TLS it goes only where AWS_ENDPOINT_URL says http://,
as with Amazon's own clients; obstore heeds no AWS_ALLOW_HTTP where it is given any of these."""

_RETRIES: "RetryConfig" = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
"""What a request is tried again by itself; beyond that the caller decides, and can tell a person."""


class ObjectConflict(RuntimeError):
    """An object of that path exists and holds something else."""


class ObjectMismatch(RuntimeError):
    """An object is not what its hash or size says it must be."""


class ObjectStore:
    """Objects under one URL: ``file://``, ``s3://``, ``gs://`` or ``az://``; settings as obstore takes them."""

    def __init__(self, url: str, *, request_bytes: int = REQUEST_BYTES) -> None:
        """Open ``url``; a local folder is made. ``request_bytes`` is the most that one request carries.

        Raises ``ValueError`` where the URL is none of these, ``StoreUnavailable`` where it cannot be opened.
        """
        local = scheme_of(url) == "file"
        self.url = url.rstrip("/")
        self._request_bytes = request_bytes
        self._known_to_refuse = local
        try:
            self._store = (
                from_url(self.url, mkdir=True)
                if local
                else from_url(self.url, client_options=_CLIENT, retry_config=_RETRIES)
            )
        except BaseError as error:
            raise unavailable(self.url, error) from error

    def uri(self, path: str) -> str:
        """The address of the object at ``path``, as it stands in events."""
        return f"{self.url}/{path}"

    async def create(self, path: str, data: bytes | Path) -> None:
        """Write an object once. An identical one that exists already is fine; a different one is never replaced.

        Raises :class:`ObjectConflict` where it holds something else, ``StoreUnavailable`` where the store did not take
        it, ``StoreUnsuitable`` where it replaces what exists, ``ValueError`` where it is larger than
        ``MAX_OBJECT_BYTES``.
        """
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        if size > MAX_OBJECT_BYTES:
            raise ValueError(f"{self.uri(path)}: {size} bytes are more than the {MAX_OBJECT_BYTES} of one object")
        try:
            if size <= self._request_bytes:
                await self._create_at_once(path, data)
            else:
                await self._create_in_parts(path, data)
        except (BaseError, FileNotFoundError) as error:  # without its bucket a store says that nothing is found
            raise unavailable(self.url, error) from error

    async def fetch(self, path: str, *, sha256: str, max_bytes: int = 64 * 1024**2) -> bytes:
        """A small object's bytes, verified.

        Raises :class:`ObjectMismatch`, ``FileNotFoundError`` where the object is missing, ``StoreUnavailable``.
        """
        with self._reading():
            result = await obstore.get_async(self._store, path)
            if result.meta["size"] > max_bytes:
                raise ObjectMismatch(
                    f"{self.uri(path)} holds {result.meta['size']} bytes, at most {max_bytes} are expected"
                )
            data = bytes(await result.bytes_async())
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise ObjectMismatch(f"{self.uri(path)} has sha256 {found}, not {sha256}")
        return data

    async def download(self, path: str, target: Path, *, sha256: str, size: int) -> None:
        """Bring an object into the file ``target``, which appears only once size and hash are right.

        Raises :class:`ObjectMismatch`, ``FileNotFoundError`` where the object is missing, ``StoreUnavailable``.
        """
        if not 0 <= size <= MAX_OBJECT_BYTES:
            raise ObjectMismatch(f"{self.uri(path)}: a size of {size} bytes is not within 0 and {MAX_OBJECT_BYTES}")
        found = await self._size(path)
        if found != size:
            raise ObjectMismatch(f"{self.uri(path)} holds {found} bytes, not {size}")
        digest = hashlib.sha256()
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                async with aclosing(self._pieces(path, size)) as pieces:
                    async for piece in pieces:
                        digest.update(piece)
                        file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() != sha256:
                raise ObjectMismatch(f"{self.uri(path)} has sha256 {digest.hexdigest()}, not {sha256}")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    async def _create_at_once(self, path: str, data: bytes | Path) -> None:
        """In one request, which the store refuses where the object exists."""
        if not await self._created(path, data):
            await self._compare(path, await asyncio.to_thread(_sha256_of, data))
        elif not self._known_to_refuse:
            # There are servers that overlook the condition. The same bytes again harm nothing.
            if await self._created(path, data):
                raise StoreUnsuitable(
                    f"store_url {self.url} replaces objects that exist: it overlooks `If-None-Match: *`, without which "
                    "two runs could write over each other; set store_url to a service that knows it"
                )
            self._known_to_refuse = True

    async def _created(self, path: str, data: bytes | Path) -> bool:
        """Whether the object is new."""
        try:
            await obstore.put_async(self._store, path, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    async def _create_in_parts(self, path: str, data: bytes | Path) -> None:
        """Claim the object by its hash, then write it if it does not stand yet."""
        sha256 = await asyncio.to_thread(_sha256_of, data)
        await self._create_at_once(path + _CLAIM_SUFFIX, f"{sha256}  {Path(path).name}\n".encode())
        try:
            await self._compare(path, sha256)
        except FileNotFoundError:
            await obstore.put_async(
                self._store,
                path,
                data,
                use_multipart=True,
                chunk_size=self._request_bytes,
                max_concurrency=_REQUESTS_AT_ONCE,
            )

    async def _compare(self, path: str, sha256: str) -> None:
        """Raises :class:`ObjectConflict` where the object is not the one with this hash, ``FileNotFoundError``."""
        digest = hashlib.sha256()
        async with aclosing(self._pieces(path, await self._size(path))) as pieces:
            async for piece in pieces:
                digest.update(piece)
        if digest.hexdigest() != sha256:
            raise ObjectConflict(
                f"{self.uri(path)} exists with sha256 {digest.hexdigest()}, not {sha256}: another run of that name "
                "wrote it; choose another run"
            )

    async def _size(self, path: str) -> int:
        with self._reading():
            try:
                return int((await obstore.head_async(self._store, path))["size"])
            except FileNotFoundError:  # a HEAD's answer does not say whether the object is missing or the bucket
                return int((await obstore.get_async(self._store, path)).meta["size"])

    async def _pieces(self, path: str, size: int) -> AsyncGenerator["obstore.Bytes"]:
        """The object's bytes in order, a request a piece, a few requests ahead of the reader."""

        async def piece(start: int) -> "obstore.Bytes":
            with self._reading():
                end = min(start + self._request_bytes, size)
                return await obstore.get_range_async(self._store, path, start=start, end=end)

        asked: deque[asyncio.Task[obstore.Bytes]] = deque()
        try:
            for start in range(0, size, self._request_bytes):
                asked.append(asyncio.create_task(piece(start)))
                if len(asked) == _REQUESTS_AT_ONCE:
                    yield await asked.popleft()
            while asked:
                yield await asked.popleft()
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What the store refuses inside, as ``StoreUnavailable``; a missing object stays ``FileNotFoundError``."""
        try:
            yield
        except FileNotFoundError as error:
            if is_without_bucket(error):
                raise unavailable(self.url, error) from error
            raise
        except BaseError as error:
            raise unavailable(self.url, error) from error


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of(data: bytes | Path) -> str:
    return file_sha256(data) if isinstance(data, Path) else hashlib.sha256(data).hexdigest()
