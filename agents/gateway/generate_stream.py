"""The answer of vLLM's ``/inference/v1/generate`` as a stream: bytes in, checked chunks out.

    data: {"choices": [{"index": 0, "text": " look", "token_ids": [312], "logprobs": {"content": […]}, …}], …}
    → Chunk(choice=0, token_ids=array("i", [312]), logprobs=array("f", [-0.25]), text=" look")

It is asked for with ``stream``, ``output_mode="text"``, ``return_token_ids`` and ``stream_options.include_usage``. How
the network cuts the bytes makes no difference but for this: what arrives of a choice at once is one chunk. Whatever
contradicts the request or itself is an error: nothing is repaired, because tokens that are off by one are trained as if
they were right. Lines of which nothing is special are read in C++ where it was built (``native/README.md``).

In text mode vLLM names the tokens of log-probabilities by their text, which several tokens may share. An engine started
with ``--return-tokens-as-token-ids`` names them ``token_id:312`` instead; then each name must be that of its token.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from headrace.agents.gateway.engine_errors import EngineAnswerInvalid, EngineBroke, error_in_stream
from headrace.agents.gateway.native.available import PlainReader, PlainRun, read_plain
from headrace.agents.gateway.rendered_ids import TokenId
from headrace.agents.sampled_tokens import check_logprobs, version_spans
from headrace.schemas.arrays import FloatArray, IntArray
from headrace.schemas.events import VersionSpan

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longest line of a stream: the prompt's echo, or a chunk of thousands of tokens with their alternatives."""

MAX_STREAM_BYTES = 4 * 1024 * 1024 * 1024
"""Largest stream. Nothing but the current line is held in memory."""

TOKEN_NAME = "token_id:"
"""Before the id of a token whose text is not given."""


class Alternative(msgspec.Struct, frozen=True, gc=False):
    """A likely token at the position of a sampled one."""

    token: str
    """Its text, or ``token_id:312``."""
    logprob: float
    """Natural logarithm; −9999 stands for minus infinity."""


class TokenEntry(msgspec.Struct, frozen=True, gc=False):
    """A sampled token as the engine describes it."""

    token: str
    """Its text, or ``token_id:312``."""
    logprob: float
    """Natural logarithm."""
    top_logprobs: list[Alternative] = []
    """The likeliest tokens, as many as were asked for; the sampled one comes first."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of one choice."""

    choice: int
    """Which of the ``n`` answers, from 0."""
    token_ids: IntArray
    """(S,) int32: sampled tokens, including a stop token; empty where only text or an end arrives."""
    logprobs: FloatArray
    """(S,) float32, natural logarithms; which distribution's is the engine's ``--logprobs-mode``."""
    text: str
    """What the tokens add to the text. Text that may be a stop string arrives later than its tokens, or never."""
    finish_reason: str | None = None
    """On a choice's last chunk: ``stop``, ``length``, ``abort`` or ``repetition``."""
    stop_reason: int | str | None = None
    """On a choice's last chunk: the stop string or token id that ended it, if one did."""
    spans: tuple[VersionSpan, ...] = ()
    """On a choice's last chunk: versions of all its tokens; they tile ``[0, number of its tokens)``."""
    prompt_ids: IntArray | None = None
    """On the first chunk of the stream: the prompt that the engine continued, int32."""
    entries: tuple[TokenEntry, ...] = ()
    """(S,) the engine's description of each token, only if alternatives were asked for."""


class EngineUsage(msgspec.Struct, frozen=True):
    """Tokens of a call, over all choices."""

    prompt: int
    completion: int
    cached: int | None = None
    """How many of ``prompt`` were in the prefix cache, if the engine reports it."""


_Entry = TypeVar("_Entry")


class _Sampled(msgspec.Struct, gc=False):
    """A :class:`TokenEntry` of which the alternatives are not read."""

    token: str
    logprob: float


class _Logprobs(msgspec.Struct, Generic[_Entry], gc=False):
    content: list[_Entry] | None = None


class _Span(msgspec.Struct, gc=False):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct, Generic[_Entry], gc=False):
    index: int
    text: str
    token_ids: list[TokenId] | None = None
    logprobs: _Logprobs[_Entry] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[_Span] | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None


class _Error(msgspec.Struct, gc=False):
    message: str
    type: str = "InternalServerError"
    param: str | None = None
    code: int | str | None = None


class _Event(msgspec.Struct, Generic[_Entry], gc=False):
    choices: list[_Choice[_Entry]] = []
    usage: _Usage | None = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    error: _Error | None = None


class _Piece(NamedTuple):
    """What one line says of a choice, or several plain lines."""

    choice: int
    token_ids: IntArray
    logprobs: FloatArray
    text: str
    entries: tuple[TokenEntry, ...] = ()
    end: _Choice[Any] | None = None
    """The line, if it ends the choice."""


_decode = msgspec.json.Decoder(_Event[_Sampled]).decode
_decode_with_entries = msgspec.json.Decoder(_Event[TokenEntry]).decode
_decode_end = msgspec.json.Decoder(_Choice[_Sampled]).decode
_decode_ids = msgspec.json.Decoder(list[TokenId] | None).decode


class _Names(dict[int, str]):
    """Names of tokens, each made once."""

    def __missing__(self, token_id: int) -> str:
        if len(self) >= _MAX_NAMES:
            self.clear()
        name = self[token_id] = f"{TOKEN_NAME}{token_id}"
        return name


_MAX_NAMES = 65_536
_names = _Names()
_DATA = b"data:"
_DONE = b"[DONE]"


def _plain_piece(run: PlainRun) -> _Piece | None:
    """Return what ``read_plain`` found; ``None`` if what it says of an end must be refused."""
    _, choice, ids, logprobs, text, _, ending = run
    end = None
    if ending is not None:
        try:
            end = _decode_end(ending)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
    return _Piece(choice, array("i", ids), array("f", logprobs), text, (), end)


class GenerateStream:
    """Reads one answer. Feed it what arrives, then call :meth:`end`."""

    def __init__(
        self,
        engine: str,
        *,
        choices: int = 1,
        max_tokens: int | None = None,
        with_entries: bool = False,
        prompt: tuple[IntArray, bytes] | None = None,
        max_line_bytes: int = MAX_LINE_BYTES,
        max_bytes: int = MAX_STREAM_BYTES,
        read_plain: PlainReader = read_plain,
    ) -> None:
        """
        Args:
            engine: Its address, redacted, for errors.
            choices: Number of answers that were asked for (``n``).
            max_tokens: Largest number of tokens that a choice may have.
            with_entries: Whether chunks carry :attr:`Chunk.entries`.
            prompt: The prompt of the request (int32) with its JSON; an echo of the same bytes need not be decoded.
            max_line_bytes: Longest line.
            max_bytes: Largest stream.
            read_plain: Reads the lines of which nothing is special; all others are read here.
        """
        self._engine = engine
        self._max_tokens = max_tokens
        self._decode: Callable[[bytes], _Event[Any]] = _decode_with_entries if with_entries else _decode
        self._with_entries = with_entries
        self._asked = prompt
        self._read_plain = read_plain
        self._plainly = None if with_entries else (None if prompt is None else prompt[1], max_line_bytes)
        """Arguments of ``read_plain``; ``None``: nothing is plain, because it does not keep the alternatives."""
        self._max_line_bytes = max_line_bytes
        self._bytes_left = max_bytes
        self._rest = bytearray()
        self._lengths = [0] * choices
        self._ended = [False] * choices
        self._is_first = True
        self._is_done = False
        self._prompt_length: int | None = None
        self._new_prompt: IntArray | None = None
        self._usage: _Usage | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended."""
        return all(self._ended)

    def feed(self, data: bytes) -> list[Chunk]:
        """Return the chunks that ``data``, the next bytes of the answer, completes.

        Raises:
            EngineAnswerInvalid: If the answer contradicts the request or itself, or is too large.
            EngineRefused, EngineFailed: If the engine reports an error in the stream.
        """
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise self._invalid("it is larger than a stream may be")
        lines = self._complete_lines(data)
        self._check_length(len(self._rest))
        chunks: list[Chunk] = []
        pieces: list[_Piece] = []
        at, size = 0, len(lines)
        while at < size:
            run = None if self._plainly is None or self._is_done else self._read_plain(lines, at, *self._plainly)
            if run is not None and (piece := _plain_piece(run)) is not None:
                at = run[0]
                if run[5] and self._asked is not None:
                    self._note_prompt(self._asked[0])
                self._add(piece, pieces, chunks)
                continue
            end = lines.find(b"\n", at)
            line = lines[at:end]
            at = end + 1
            if line.startswith(_DATA):
                self._check_length(len(line))
                self._read(line[len(_DATA) :].strip(), pieces, chunks)
        if pieces:
            chunks.append(self._chunk(pieces))
        return chunks

    def _complete_lines(self, data: bytes) -> bytes:
        """Return what is known up to the last line's end, and keep the rest."""
        searched = len(self._rest)
        if searched:
            self._rest += data
            end = self._rest.rfind(b"\n", searched) + 1
            lines = bytes(self._rest[:end])
            del self._rest[:end]
            return lines
        end = data.rfind(b"\n") + 1
        if end == len(data):
            return data
        self._rest += data[end:]
        return data[:end]

    def end(self) -> EngineUsage:
        """Return the usage, after the last byte.

        Raises:
            EngineBroke: If a choice has not ended.
            EngineAnswerInvalid: If the engine counts other tokens than it sent.
        """
        if not self.is_complete:
            missing = ", ".join(str(choice) for choice, ended in enumerate(self._ended) if not ended)
            raise EngineBroke(self._engine, f"ended its answer without an end of choice {missing}")
        sent, length = sum(self._lengths), self._prompt_length
        if length is None and self._asked is not None:
            length = len(self._asked[0])
        if (usage := self._usage) is None:
            return EngineUsage(length or 0, sent)
        if usage.completion_tokens != sent:
            raise self._invalid(f"it counts {usage.completion_tokens} sampled tokens, and sent {sent}")
        if length is not None and usage.prompt_tokens != length:
            raise self._invalid(f"it counts {usage.prompt_tokens} tokens of the prompt, which has {length}")
        details = usage.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        return EngineUsage(usage.prompt_tokens, sent, cached if 0 <= (cached or 0) <= usage.prompt_tokens else None)

    def _add(self, piece: _Piece, pieces: list[_Piece], chunks: list[Chunk]) -> None:
        """Add a piece to ``pieces``, which belong to one choice; those before another one become a chunk."""
        if pieces and (piece.choice != pieces[0].choice or pieces[-1].end is not None):
            chunks.append(self._chunk(pieces))
            pieces.clear()
        self._is_first = False
        pieces.append(piece)

    def _read(self, payload: bytes, pieces: list[_Piece], chunks: list[Chunk]) -> None:
        """Add a line's choices to ``pieces``."""
        if self._is_done:
            raise self._invalid("it continues after its end")
        if payload == _DONE:
            self._is_done = True
            return
        try:
            event = self._decode(payload)
            echo = self._echo(event.prompt_token_ids)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._invalid(f"{error}: {payload[:200]!r}") from error
        if (reported := event.error) is not None:
            raise error_in_stream(self._engine, reported.message, reported.type, reported.param, reported.code)
        self._note_prompt(echo)
        for choice in event.choices:
            self._add(self._piece(choice), pieces, chunks)
        if event.usage is not None:
            self._usage = event.usage

    def _echo(self, given: msgspec.Raw) -> IntArray | None:
        if not given:
            return None
        if self._asked is not None and bytes(given) == self._asked[1]:
            return self._asked[0]
        token_ids = _decode_ids(given)
        return None if token_ids is None else array("i", token_ids)

    def _note_prompt(self, echo: IntArray | None) -> None:
        if echo is None:
            return
        if not self._is_first or self._prompt_length is not None:
            raise self._invalid("it repeats the prompt")
        if not echo:
            raise self._invalid("it reports a prompt without tokens")
        self._prompt_length = len(echo)
        self._new_prompt = echo

    def _piece(self, choice: _Choice[Any]) -> _Piece:
        """Return what a line says of a choice, checked."""
        ids: Sequence[int] = choice.token_ids or ()
        content: Sequence[Any] = () if choice.logprobs is None else choice.logprobs.content or ()
        if len(content) != len(ids):
            raise self._invalid(f"{len(content)} log-probabilities do not match the {len(ids)} sampled tokens")
        logprobs = self._checked_logprobs(ids, content) if ids else array("f")
        entries = tuple(content) if self._with_entries else ()
        end = None if choice.finish_reason is None else choice
        return _Piece(choice.index, array("i", ids), logprobs, choice.text, entries, end)

    def _chunk(self, pieces: Sequence[_Piece]) -> Chunk:
        """Return what arrived of one choice at once as one chunk: each costs the same, however much it holds."""
        index, ids, logprobs, text, entries, end = pieces[0]
        if not 0 <= index < len(self._ended):
            raise self._invalid(f"it has a choice {index}, and {len(self._ended)} were asked for")
        if self._ended[index]:
            raise self._invalid(f"choice {index} continues after its end")
        if len(pieces) > 1:
            text = "".join([piece.text for piece in pieces])
            entries = tuple(entry for piece in pieces for entry in piece.entries)
            end = pieces[-1].end
            for piece in pieces[1:]:
                ids += piece.token_ids
                logprobs += piece.logprobs
        if ids:
            self._lengths[index] += len(ids)
            if self._max_tokens is not None and self._lengths[index] > self._max_tokens:
                raise self._invalid(f"choice {index} has more than {self._max_tokens} tokens, the limit of the request")
        prompt, self._new_prompt = self._new_prompt, None
        if end is None:
            return Chunk(index, ids, logprobs, text, prompt_ids=prompt, entries=entries)
        self._ended[index] = True
        try:
            reported = [(span.version, span.start, span.end) for span in end.weight_versions or ()]
            spans = version_spans(reported, self._lengths[index])
        except ValueError as error:
            raise self._invalid(str(error)) from error
        return Chunk(index, ids, logprobs, text, end.finish_reason, end.stop_reason, spans, prompt, entries)

    def _checked_logprobs(self, ids: Sequence[int], content: Sequence[TokenEntry | _Sampled]) -> FloatArray:
        logprobs = array("f", [entry.logprob for entry in content])
        try:
            check_logprobs(logprobs)
        except ValueError as error:
            raise self._invalid(str(error)) from error
        if content[0].token.startswith(TOKEN_NAME):
            expected = [_names[token_id] for token_id in ids]
            if (found := [entry.token for entry in content]) != expected:
                given, name = next(pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1])
                raise self._invalid(f"the log-probability of {given[:40]!r} is given for {name}")
        return logprobs

    def _check_length(self, length: int) -> None:
        if length > self._max_line_bytes:
            raise self._invalid(f"one of its lines has more than {self._max_line_bytes:,} bytes")

    def _invalid(self, problem: str) -> EngineAnswerInvalid:
        return EngineAnswerInvalid(self._engine, f"sent an answer that cannot be used: {problem}")
