"""The object store: immutable objects, created once, and believed only after their sha256 was checked.

``ObjectStore("file:///data/objects")`` and ``ObjectStore("s3://bucket/prefix")`` behave the same. Nothing is ever
overwritten: an object's path names its content's version, and an event in the log points at it.
"""

import hashlib
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

if TYPE_CHECKING:  # they exist in the type stubs alone
    from obstore.store import ClientConfig, RetryConfig

MAX_OBJECT_BYTES = 64 * 1024**3
"""Largest object that is read, in bytes; a size stated by a manifest narrows it."""


_CLIENT: "ClientConfig" = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(minutes=15)}
"""Of a request. Weights are one request each: 5 GiB in 15 minutes need 6 MB/s."""

_RETRIES: "RetryConfig" = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
"""What a request is tried again by itself; beyond that the caller decides, and can tell a person."""


class StoreUnavailable(RuntimeError):
    """The object store did not take an object: unreachable, full, or it refuses the credentials. Try again."""


class ObjectConflict(RuntimeError):
    """An object of that path exists and holds something else."""


class ObjectMismatch(RuntimeError):
    """An object is not what its hash or size says it must be."""


class ObjectStore:
    """Objects under one URL: ``file://``, ``s3://``, ``gs://`` or ``az://``; settings as obstore takes them."""

    def __init__(self, url: str) -> None:
        """Open ``url``; a local folder is made. Raises ``ValueError`` where the URL has no scheme."""
        if "://" not in url:
            raise ValueError(f"store_url {url!r} is not a URL: write file:///folder or s3://bucket/prefix")
        self.url = url.rstrip("/")
        local = urlsplit(url).scheme == "file"
        self._store = (
            from_url(self.url, mkdir=True)
            if local
            else from_url(self.url, client_options=_CLIENT, retry_config=_RETRIES)
        )

    def uri(self, path: str) -> str:
        """The address of the object at ``path``, as it stands in events."""
        return f"{self.url}/{path}"

    def path(self, uri: str) -> str:
        """The path of ``uri`` in this store; raises ``ValueError`` where it points elsewhere."""
        prefix = self.url + "/"
        if not uri.startswith(prefix):
            raise ValueError(f"{uri} is not in the object store {self.url}: check store_url")
        return uri[len(prefix) :]

    async def create(self, path: str, data: bytes | Path) -> None:
        """Write an object once. An identical one that exists already is fine; a different one is never replaced.

        Raises :class:`ObjectConflict` where it holds something else, :class:`StoreUnavailable` where the store did not
        take it.
        """
        try:
            if await self._created(path, data):
                return
            wanted, found = _sha256_of(data), await self._sha256(path)
        except BaseError as error:
            raise StoreUnavailable(f"the object store {self.url} takes no objects: {error}") from error
        if found != wanted:
            raise ObjectConflict(
                f"{self.uri(path)} exists with sha256 {found}, not {wanted}: another run of that name wrote it; "
                "choose another run"
            )

    async def _created(self, path: str, data: bytes | Path) -> bool:
        """Whether the object is new."""
        try:
            # Multipart uploads know no create mode: a single request, which S3 limits to 5 GiB.
            await obstore.put_async(self._store, path, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    async def fetch(self, path: str, *, sha256: str, max_bytes: int = 64 * 1024**2) -> bytes:
        """A small object's bytes, verified. Raises :class:`ObjectMismatch`, or ``FileNotFoundError``."""
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
        """Stream an object into the file ``target``, which appears only once size and hash are right.

        Raises :class:`ObjectMismatch`; ``FileNotFoundError`` where the object is missing.
        """
        if not 0 <= size <= MAX_OBJECT_BYTES:
            raise ObjectMismatch(f"{self.uri(path)}: a size of {size} bytes is not within 0 and {MAX_OBJECT_BYTES}")
        result = await obstore.get_async(self._store, path)
        if result.meta["size"] != size:
            raise ObjectMismatch(f"{self.uri(path)} holds {result.meta['size']} bytes, not {size}")
        digest = hashlib.sha256()
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                async for chunk in result.stream():
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() != sha256:
                raise ObjectMismatch(f"{self.uri(path)} has sha256 {digest.hexdigest()}, not {sha256}")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    async def _sha256(self, path: str) -> str:
        digest = hashlib.sha256()
        result = await obstore.get_async(self._store, path)
        async for chunk in result.stream():
            digest.update(chunk)
        return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of(data: bytes | Path) -> str:
    return file_sha256(data) if isinstance(data, Path) else hashlib.sha256(data).hexdigest()
