"""The object store: immutable objects, created once, and used only after their sha256 was verified.

``ObjectStore("file:///data/objects")`` and ``ObjectStore("s3://bucket/prefix")`` behave the same. Nothing is ever
overwritten: an object's path contains its version, and an event in the log points at it.

    manifest.json                  one request, which fails if the object exists
    model.safetensors.sha256       the claim of an object larger than one request, created in the same way
    model.safetensors              the claimed content, uploaded in parts

A multipart upload overwrites an existing object, so the claim, in the format of `sha256sum -c`, decides which content
may be written. Writers of the claimed content write the same bytes, and different content is refused before it is sent.
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

from headrace.schemas.objects.ending import end_cleanly
from headrace.schemas.objects.store_url import scheme_of
from headrace.schemas.objects.unavailable import StoreUnsuitable, is_without_bucket, unavailable

if TYPE_CHECKING:  # they exist in the type stubs alone
    from obstore.store import ClientConfig, RetryConfig

MAX_OBJECT_BYTES = 64 * 1024**3
"""Largest object that is written or read, in bytes; a manifest's size lowers the bound. S3 takes 10,000 parts."""

REQUEST_BYTES = 64 * 1024**2
"""Largest body of a request or response, in bytes. S3 takes parts of 5 MiB to 5 GiB."""

_REQUESTS_AT_ONCE = 4
"""Parts in flight; each holds up to ``REQUEST_BYTES`` in memory."""

_CLAIM_SUFFIX = ".sha256"

_CLIENT: "ClientConfig" = {
    "connect_timeout": timedelta(seconds=5),
    "timeout": timedelta(minutes=5),
    "allow_http": True,
}
"""Options of a request: 64 MiB in 5 minutes need 0.2 MB/s. TLS is off only if AWS_ENDPOINT_URL begins with http://, as
in Amazon's own clients; obstore ignores AWS_ALLOW_HTTP if any of these options is given."""

_RETRIES: "RetryConfig" = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
"""Retries of a single request; further retries, and alerts, are the caller's."""


class ObjectConflict(RuntimeError):
    """An object of that path exists with other content."""


class ObjectMismatch(RuntimeError):
    """An object does not have the expected hash or size."""


class ObjectStore:
    """Objects under one URL: ``file://``, ``s3://``, ``gs://`` or ``az://``; obstore reads the environment."""

    def __init__(self, url: str, *, request_bytes: int = REQUEST_BYTES) -> None:
        """Open ``url``; a local folder is created. ``request_bytes`` is the largest body of one request.

        Raises ``ValueError`` for another kind of URL, ``StoreUnavailable`` if it cannot be opened.
        """
        end_cleanly()
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
        """Returns the address of the object at ``path``, as used in events."""
        return f"{self.url}/{path}"

    async def create(self, path: str, data: bytes | Path) -> None:
        """Create an object. An identical existing one is accepted; a different one is never replaced.

        Raises :class:`ObjectConflict` if it exists with other content, ``StoreUnavailable`` if it could not be written,
        ``StoreUnsuitable`` if the store overwrites existing objects, ``ValueError`` if it is larger than
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
        except (BaseError, FileNotFoundError) as error:  # a missing bucket is reported as not found
            raise unavailable(self.url, error) from error

    async def create_if_absent(self, path: str, data: bytes) -> bool:
        """Create an object in one request; returns whether it is new. An existing one stays, whatever its content.

        Raises ``StoreUnavailable`` if it could not be written, ``StoreUnsuitable`` if the store overwrites existing
        objects.
        """
        try:
            is_new = await self._created(path, data)
            if not is_new:
                self._known_to_refuse = True
            elif not self._known_to_refuse:
                await self._check_refusal(path, data)
        except (BaseError, FileNotFoundError) as error:  # a missing bucket is reported as not found
            raise unavailable(self.url, error) from error
        return is_new

    async def below(self, folder: str) -> dict[str, int]:
        """Returns the objects below ``folder``: path → size in bytes, by path. Raises ``StoreUnavailable``."""
        with self._reading():
            found = {each["path"]: each["size"] async for page in obstore.list(self._store, folder) for each in page}
        return dict(sorted(found.items()))

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """Returns an object whose content carries its own checks.

        Raises :class:`ObjectMismatch` if it is larger than ``max_bytes``, ``FileNotFoundError`` if it is missing,
        ``StoreUnavailable``.
        """
        with self._reading():
            size, data = await self._read(path, max_bytes)
        if data is None:
            raise ObjectMismatch(f"{self.uri(path)} holds {size} bytes, more than the expected {max_bytes}")
        return data

    async def read_end(self, path: str, size: int, most: int) -> bytes:
        """Returns the last bytes of an object of ``size`` bytes, at most ``most``; raises as :meth:`read`."""
        with self._reading():
            return bytes(await obstore.get_range_async(self._store, path, start=max(0, size - most), end=size))

    async def fetch(self, path: str, *, sha256: str, max_bytes: int = 64 * 1024**2) -> bytes:
        """Fetch a small object, and verify it.

        Raises :class:`ObjectMismatch`, ``FileNotFoundError`` if the object is missing, ``StoreUnavailable``.
        """
        with self._reading():
            size, data = await self._read(path, max_bytes)
            if data is None:
                raise ObjectMismatch(f"{self.uri(path)} holds {size} bytes, more than the expected {max_bytes}")
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise ObjectMismatch(f"{self.uri(path)} has sha256 {found}, not {sha256}")
        return data

    async def _read(self, path: str, max_bytes: int) -> tuple[int, bytes | None]:
        """Returns the size of an object, and its content unless it is larger than ``max_bytes``."""
        result = await obstore.get_async(self._store, path)
        size = result.meta["size"]
        return size, None if size > max_bytes else bytes(await result.bytes_async())

    async def download(self, path: str, target: Path, *, sha256: str, size: int) -> None:
        """Download an object to the file ``target``, which is created only after size and hash were verified.

        Raises :class:`ObjectMismatch`, ``FileNotFoundError`` if the object is missing, ``StoreUnavailable``.
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
        """Create an object in one request, which the store refuses if the object exists."""
        if not await self._created(path, data):
            await self._compare(path, await asyncio.to_thread(_sha256_of, data))
        elif not self._known_to_refuse:
            await self._check_refusal(path, data)

    async def _check_refusal(self, path: str, data: bytes | Path) -> None:
        """Raises ``StoreUnsuitable`` if the store would overwrite the object at ``path``, which was just created."""
        # Some servers ignore the condition. Writing the same bytes again is harmless.
        if await self._created(path, data):
            raise StoreUnsuitable(
                f"store_url {self.url} overwrites existing objects: it ignores `If-None-Match: *`, without which "
                "two writers could overwrite each other's objects; set store_url to a service that supports it"
            )
        self._known_to_refuse = True

    async def _created(self, path: str, data: bytes | Path) -> bool:
        """Create the object; returns whether it is new."""
        try:
            await obstore.put_async(self._store, path, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    async def _create_in_parts(self, path: str, data: bytes | Path) -> None:
        """Claim the object by its hash, then write it if it does not exist yet."""
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
        """Raises :class:`ObjectConflict` if the object has another hash, ``FileNotFoundError`` if it is missing."""
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
            except (
                FileNotFoundError
            ):  # the response to HEAD does not distinguish a missing object from a missing bucket
                return int((await obstore.get_async(self._store, path)).meta["size"])

    async def _pieces(self, path: str, size: int) -> AsyncGenerator["obstore.Bytes"]:
        """Yield the object's bytes in order, one request per piece, a few requests ahead of the reader."""

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
        """Turn the store's errors into ``StoreUnavailable``; a missing object stays ``FileNotFoundError``."""
        try:
            yield
        except FileNotFoundError as error:
            if is_without_bucket(error):
                raise unavailable(self.url, error) from error
            raise
        except BaseError as error:
            raise unavailable(self.url, error) from error


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 (hex) of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of(data: bytes | Path) -> str:
    return file_sha256(data) if isinstance(data, Path) else hashlib.sha256(data).hexdigest()
