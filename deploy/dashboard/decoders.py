"""Finds the tokenizer of a run by its published versions in ClickHouse, and keeps it loaded."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from headrace.deploy.dashboard.source import Source
from headrace.deploy.errors import StackError
from headrace.deploy.transcript.decoding import Decode
from headrace.deploy.transcript.tokenizer import decoder, tokenizer_of
from headrace.schemas.records.weights import Weights

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

MAX_DECODERS = 4
"""Tokenizers that are kept loaded: tens of megabytes each."""
MISSING_S = 20.0
"""Seconds after which a run without a tokenizer is looked at again."""
KEEP_S = 3600.0
"""Seconds after which a tokenizer is looked up again: a run of the same name may have begun anew."""

_VERSIONS = """
    SELECT run, version, parent, kind, manifest_uri, sha256, size, step FROM weights FINAL
    WHERE run = {run:String} ORDER BY version DESC LIMIT 20
"""


@dataclass(frozen=True, slots=True)
class FoundDecoder:
    """The result of a search for a run's tokenizer."""

    decode: Decode | None
    """Makes text of tokens; ``None`` if there is none."""
    name: str
    """Name of the tokenizer."""
    problem: str
    """Why there is none; empty if there is one."""


class Decoders:
    """The tokenizers of runs, by name."""

    def __init__(self, source: Source, objects: str | None) -> None:
        """``objects``: URL of the object store with the weights; ``None`` if it is not known."""
        self._source = source
        self._objects = objects
        self._kept: OrderedDict[str, tuple[float, FoundDecoder]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def of(self, run: str) -> FoundDecoder:
        """Returns the tokenizer of ``run``. Raises :class:`source.Unavailable`."""
        async with self._lock:
            read_at, kept = self._kept.get(run, (0.0, None))
            if kept is not None and monotonic() - read_at < (KEEP_S if kept.decode else MISSING_S):
                self._kept.move_to_end(run)
                return kept
            found = await self._search(run)
            self._kept[run] = (monotonic(), found)
            self._kept.move_to_end(run)
            if len(self._kept) > MAX_DECODERS:
                self._kept.popitem(last=False)
            return found

    async def _search(self, run: str) -> FoundDecoder:
        if self._objects is None:
            return _none("The dashboard does not know the object store: set HEADRACE_STORE_URL.")
        pointers = await self._source.read(lambda client: _versions(client, run))
        try:
            found = await tokenizer_of(pointers, self._objects, run)
            if found is None:
                return _none(f"No trainer has published a tokenizer for the run {run!r}.")
            tokenizer, content = found
            return FoundDecoder(await asyncio.to_thread(decoder, content), tokenizer.name, "")
        except StackError as error:
            return _none(str(error))


def _none(why: str) -> FoundDecoder:
    return FoundDecoder(None, "", why)


def _versions(client: "Client", run: str) -> list[Weights]:
    result = client.query(_VERSIONS, parameters={"run": run})
    found = [Weights(**dict(zip(result.column_names, row, strict=True))) for row in result.result_rows]
    return found[::-1]
