"""Folds model calls into segments: token sequences whose context only grew, so that one forward pass scores them.

    call 1  context A B      sampled x y      ─┐ one segment   A B x y C z
    call 2  prefix A B x y   context C, z     ─┘ loss mask     0 0 1 1 0 1
    call 3  prefix empty, context A D (pruned) → a new segment whose context is masked

Nothing is guessed: if a prefix does not match by length and hash, the trajectory gets a label and no tokens.
"""

import hashlib
import sys
from array import array
from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.arrays import FloatArray, IntArray
from headrace.schemas.events import ModelCalled, SamplingSpan, VersionSpan
from headrace.schemas.records.trajectory import Defect, Segment
from headrace.streams.structs import writing

MAX_TOKENS = 1_000_000
"""Most tokens of a trajectory over all segments; beyond that it is labelled and its tokens are left out."""

_TOKEN_FIELDS = frozenset({"context_ids", "sampled_ids", "logprobs"})

_Segment, _VersionSpan, _SamplingSpan = writing(Segment), writing(VersionSpan), writing(SamplingSpan)


@dataclass(slots=True)
class _SegmentDraft:
    """A segment under construction; axes as in :class:`Segment`."""

    token_ids: IntArray = field(default_factory=lambda: array("i"))
    loss_mask: IntArray = field(default_factory=lambda: array("b"))
    logprobs: FloatArray | None = field(default_factory=lambda: array("f"))
    version_spans: list[VersionSpan] | None = field(default_factory=list)
    sampling_spans: list[SamplingSpan] = field(default_factory=list)
    sampled: int = 0
    hashed: int = 0
    """Number of tokens of ``token_ids`` that are already in ``hash``."""
    hash: Any = field(default_factory=hashlib.sha256)

    def prefix_sha256(self) -> str:
        """Returns ``schemas.tokens.prefix_hash`` of ``token_ids``. They only grow, so each token is hashed once."""
        fresh = self.token_ids[self.hashed :]
        if sys.byteorder == "big":
            fresh.byteswap()
        self.hash.update(fresh)
        self.hashed += len(fresh)
        return str(self.hash.hexdigest())

    def extend(self, context_ids: IntArray, call: ModelCalled, sampled_ids: IntArray) -> None:
        """Append a call's new context, masked, and its sampled tokens."""
        self.token_ids.extend(context_ids)
        self.loss_mask.frombytes(bytes(len(context_ids)))
        self.token_ids.extend(sampled_ids)
        self.loss_mask.frombytes(b"\x01" * len(sampled_ids))
        if sampled_ids:
            self._label(call)
            _append_sampling(self.sampling_spans, call.sampling.temperature, self.sampled, len(sampled_ids))
        self.sampled += len(sampled_ids)

    def _label(self, call: ModelCalled) -> None:
        if call.logprobs is None:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs.extend(call.logprobs)
        if not call.version_spans:
            self.version_spans = None
        elif self.version_spans is not None:
            for span in call.version_spans:
                _append_span(self.version_spans, span, self.sampled)

    def finished(self) -> Segment:
        return _Segment(
            token_ids=self.token_ids,
            loss_mask=self.loss_mask,
            logprobs=self.logprobs,
            version_spans=self.version_spans or [],
            sampling_spans=self.sampling_spans,
        )


def _append_span(spans: list[VersionSpan], span: VersionSpan, shift: int) -> None:
    """Append ``span``, shifted by ``shift`` sampled tokens; adjacent spans of one run and version are merged."""
    start = span.start + shift
    if spans and spans[-1].version == span.version and spans[-1].run == span.run:
        start = spans.pop().start
    spans.append(_VersionSpan(version=span.version, start=start, end=span.end + shift, run=span.run))


def _append_sampling(spans: list[SamplingSpan], temperature: float | None, start: int, length: int) -> None:
    """Append ``length`` tokens sampled at ``temperature``; adjacent spans of one temperature are merged."""
    end = start + length
    if spans and spans[-1].temperature == temperature:
        start = spans.pop().start
    spans.append(_SamplingSpan(temperature=temperature, start=start, end=end))


class SegmentFold:
    """Folds a trajectory's model calls, in order, into segments and labels."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.defects: set[Defect] = set()
        self.runs: set[str] = set()
        """Training runs whose policies sampled, as reported by the engines."""
        self.sampled_tokens = 0
        self._max_tokens = max_tokens
        self._tokens = 0
        self._drafts: list[_SegmentDraft] = []
        self._lost = False

    def add(self, call: ModelCalled) -> None:
        """Fold the next model call."""
        if not _TOKEN_FIELDS.isdisjoint(call.hidden):
            self.defects.add(Defect.REDACTED)
        if call.context_ids is None or call.sampled_ids is None:
            self._lose(Defect.NO_TOKEN_IDS)
        if call.sampled_ids:
            self._label(call, len(call.sampled_ids))
        if not self._lost and call.context_ids is not None and call.sampled_ids is not None:
            self._append(call, call.context_ids, call.sampled_ids)

    def segments(self) -> list[Segment]:
        """Returns the segments; none if the tokens of any call are missing or inconsistent."""
        return [draft.finished() for draft in self._drafts]

    def _label(self, call: ModelCalled, sampled: int) -> None:
        self.sampled_tokens += sampled
        if call.logprobs is None:
            self.defects.add(Defect.NO_LOGPROBS)
        if not call.version_spans or any(span.version is None for span in call.version_spans):
            self.defects.add(Defect.UNKNOWN_VERSION)
        self.runs.update(span.run for span in call.version_spans if span.run is not None)
        if call.sampling.truncates:
            self.defects.add(Defect.TRUNCATED_SAMPLING)
        if call.sampling.is_greedy:
            self.defects.add(Defect.GREEDY_SAMPLING)
        if call.sampling.is_altered:
            self.defects.add(Defect.ALTERED_SAMPLING)
        if call.sampling.is_unknown:
            self.defects.add(Defect.UNKNOWN_SAMPLING)

    def _append(self, call: ModelCalled, context_ids: IntArray, sampled_ids: IntArray) -> None:
        draft = self._drafts[-1] if self._drafts else _SegmentDraft()
        current = draft.token_ids
        if call.prefix_length:
            if call.prefix_length != len(current) or call.prefix_sha256 != draft.prefix_sha256():
                self._lose(Defect.BROKEN_PREFIX)
                return
        elif current and context_ids[: len(current)] == current:
            # The SDK sends whole contexts: the tokens of the current segment are the prefix.
            context_ids = context_ids[len(current) :]
        else:
            draft = _SegmentDraft()
            self._drafts.append(draft)
        self._tokens += len(context_ids) + len(sampled_ids)
        if self._tokens > self._max_tokens:
            self._lose(Defect.OVERSIZE)
            return
        draft.extend(context_ids, call, sampled_ids)

    def _lose(self, why: Defect) -> None:
        self.defects.add(why)
        self._lost = True
        self._drafts.clear()
