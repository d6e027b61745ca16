"""Finds the tokenizer of a run: in a folder, or where its trainer published it."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from headrace.deploy.errors import StackError
from headrace.deploy.transcript.decoding import Decode
from headrace.schemas.objects.store import ObjectMismatch, ObjectStore
from headrace.schemas.objects.unavailable import StoreUnavailable
from headrace.schemas.records.weights import Tokenizer, Weights
from headrace.schemas.topics import WEIGHTS
from headrace.trainer.provenance.evidence import read_as
from headrace.trainer.provenance.log_reader import LogReader
from headrace.trainer.weights.published import MAX_TOKENIZER_BYTES, TOKENIZER_FILE, fetch_manifest, fetch_tokenizer


def read_tokenizer(path: Path) -> bytes:
    """Returns ``tokenizer.json``, given as a file or as the Hugging Face directory that holds it.

    Raises ``StackError`` if there is none.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        size = file.stat().st_size
        if size > MAX_TOKENIZER_BYTES:
            raise StackError(f"--tokenizer: {file} has {size:,} bytes, more than the {MAX_TOKENIZER_BYTES:,} allowed.")
        return file.read_bytes()
    except OSError as error:
        raise StackError(f"--tokenizer: {file} cannot be read ({error.strerror}).") from error


async def published_tokenizer(log: LogReader, store_url: str, run: str) -> tuple[Tokenizer, bytes] | None:
    """Returns the tokenizer of ``run`` by the versions in the log, as :func:`tokenizer_of`."""
    pointers = [
        pointer
        async for record in log.scan(WEIGHTS)
        if record.key == run.encode() and isinstance(pointer := read_as(record, run, Weights), Weights)
    ]
    return await tokenizer_of(pointers, store_url, run)


async def tokenizer_of(pointers: Sequence[Weights], store_url: str, run: str) -> tuple[Tokenizer, bytes] | None:
    """Returns the tokenizer that the newest readable one of ``pointers``, versions of ``run`` in ascending order,
    names, verified; ``None`` without a version, or if its manifest names no tokenizer.

    Raises ``StackError`` if the object store cannot be read.
    """
    if not pointers:
        return None
    try:
        store = ObjectStore(store_url)
        for pointer in reversed(pointers):
            try:
                manifest = await fetch_manifest(store, pointer)
            except (FileNotFoundError, ObjectMismatch, ValueError):  # pruned from the store, or not this run's: older
                continue
            if manifest.tokenizer is None:
                return None
            return manifest.tokenizer, await fetch_tokenizer(store, manifest.tokenizer)
    except (FileNotFoundError, ObjectMismatch, StoreUnavailable) as error:
        raise StackError(
            f"The tokenizer of run {run!r} cannot be read: {error}. Name a folder with --tokenizer."
        ) from error
    return None


def decoder(tokenizer_json: bytes) -> Decode:
    """Returns a function that makes text of token ids, with special tokens; ids outside the vocabulary are shown as
    ``[id 151999]``.

    Raises ``StackError`` if the file is no tokenizer, or the library is missing.
    """
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise StackError(
            "Text of tokens needs the package tokenizers, which comes with a trainer or vLLM: install it with `pip "
            "install tokenizers`, or print token ids with --ids."
        ) from error
    try:
        loaded = tokenizers.Tokenizer.from_str(tokenizer_json.decode())
    except Exception as error:  # the library raises no narrower class
        raise StackError(f"The tokenizer cannot be loaded: {error}.") from error

    def decode(token_ids: Sequence[int]) -> str:
        texts = []
        for is_known, run in groupby(token_ids, key=lambda each: each >= 0 and loaded.id_to_token(each) is not None):
            known = list(run)
            texts += (
                [loaded.decode(known, skip_special_tokens=False)] if is_known else [f"[id {each}]" for each in known]
            )
        return " ".join(texts) if len(texts) > 1 else "".join(texts)

    return decode
