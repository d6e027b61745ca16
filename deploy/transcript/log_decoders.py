"""The tokenizers of the runs in a log, for commands that print text of many records."""

from pathlib import Path

from headrace.deploy.errors import StackError
from headrace.deploy.transcript.decoding import Decode
from headrace.deploy.transcript.tokenizer import decoder, published_tokenizer, read_tokenizer
from headrace.trainer.provenance.log_reader import LogReader
from headrace.trainer.provenance.steps import runs_in


class NoTokenizer(StackError):
    """No tokenizer is known; the message says what to do."""


class LogDecoders:
    """What makes text of a run's tokens: the tokenizer that its trainer published, or one that was named."""

    def __init__(self, log: LogReader, store_url: str, given: Path | None = None) -> None:
        """Reads versions from ``log`` and tokenizers from the object store at ``store_url``.

        ``given``: a folder or file with the tokenizer of all runs, instead. Raises ``StackError`` if it cannot be read.
        """
        self._log = log
        self._store_url = store_url
        self._given = None if given is None else decoder(read_tokenizer(given))
        self._known: dict[str, Decode] = {}
        self._unknown: dict[str | None, str] = {}

    async def of(self, run: str | None) -> Decode:
        """Returns the decoder of ``run``; ``None``: of the only run in the log.

        Raises ``NoTokenizer`` if there is none, or several runs to choose from, also if that has changed since the
        first call; ``StackError`` if it cannot be read.
        """
        if self._given is not None:
            return self._given
        if run in self._unknown:
            raise NoTokenizer(self._unknown[run])
        try:
            return await self._published(await self._only_run() if run is None else run)
        except NoTokenizer as error:
            self._unknown[run] = str(error)
            raise

    async def _published(self, run: str) -> Decode:
        if run not in self._known:
            published = await published_tokenizer(self._log, self._store_url, run)
            if published is None:
                raise NoTokenizer(
                    f"No tokenizer of run {run!r} is known: no trainer has published one. Name the model's folder with "
                    "--tokenizer, choose another run with --run, or leave out --text."
                )
            self._known[run] = decoder(published[1])
        return self._known[run]

    async def _only_run(self) -> str:
        runs = await runs_in(self._log)
        if len(runs) == 1:
            return runs[0]
        why = f"the log has several: {', '.join(runs[:20])}" if runs else "no trainer has published a version"
        raise NoTokenizer(
            f"A record with tokens does not say of which run it is, and {why}. Choose one with --run, or name the "
            "model's folder with --tokenizer."
        )
