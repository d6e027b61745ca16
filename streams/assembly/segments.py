"""Folds model calls into segments: token sequences whose context only grew, so that one forward pass scores them.

    call 1  context A B      sampled x y        ─┐ one segment   A B x y C z
    call 2  prefix A B x y   context C, z       ─┘ loss mask     0 0 1 1 0 1
    call 3  prefix empty, context A D (pruned)   → a segment     A D …       whose context is masked
    call 4  prefix A B x y   context E, w        → a fork        A B x y E w
                                                   loss mask     0 0 0 0 0 1   x y are trained in the first segment

A prefix is the context of an earlier call with the tokens that this call sampled. Any call of the trajectory will do:

    1. Of the drafts that end with exactly these tokens, the one whose call reached them last continues.
    2. If all drafts that had them have moved on, a fork begins: a draft with the prefix as masked context.
    3. If no call ended with them, the trajectory gets a label and no tokens. Nothing is guessed.

A call without a prefix continues the previous call's draft if its context begins with that draft's tokens; otherwise it
begins a draft. Segments are in the order in which their drafts began. Each sampled token is trainable in one of them,
where it was sampled.
"""

import hashlib
import sys
from array import array
from dataclasses import dataclass, field

from headrace.schemas.arrays import FloatArray, IntArray
from headrace.schemas.events import ModelCalled, SamplingSpan, VersionSpan
from headrace.schemas.hidden import TOKEN_FIELDS
from headrace.schemas.records.trajectory import Defect, Segment
from headrace.streams.structs import writing

MAX_TOKENS = 1_000_000
"""Most tokens of a trajectory over all segments, the masked prefixes of forks included; beyond that it is labelled and
its tokens are left out."""

_TOKEN_FIELDS = frozenset(TOKEN_FIELDS)

_Segment, _VersionSpan, _SamplingSpan = writing(Segment), writing(VersionSpan), writing(SamplingSpan)


class _PrefixHash:
    """Hashes prefixes of a growing array, in ascending length, like ``prefix_hash``: each token is hashed once."""

    __slots__ = ("_hash", "_hashed")

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._hashed = 0

    def of(self, token_ids: IntArray, length: int) -> str:
        """Returns the hash of ``token_ids[:length]``; ``length`` must not be less than in earlier calls."""
        fresh = token_ids[self._hashed : length]
        if sys.byteorder == "big":
            fresh.byteswap()
        self._hash.update(fresh)
        self._hashed = length
        return self._hash.hexdigest()


@dataclass(slots=True)
class _SegmentDraft:
    """A segment under construction; axes as in :class:`Segment`."""

    token_ids: IntArray = field(default_factory=lambda: array("i"))
    loss_mask: IntArray = field(default_factory=lambda: array("b"))
    logprobs: FloatArray | None = field(default_factory=lambda: array("f"))
    version_spans: list[VersionSpan] | None = field(default_factory=list)
    sampling_spans: list[SamplingSpan] = field(default_factory=list)
    sampled: int = 0
    number: int = 0
    """Its index among the trajectory's segments."""
    hash: _PrefixHash | None = None
    """Hash of all tokens, once a call names as many."""
    end_hash: _PrefixHash | None = None
    """Hash of the tokens at the end of a call, once one is searched; it may be far behind ``hash``."""

    def is_prefix(self, call: ModelCalled) -> bool:
        """Whether the prefix of ``call`` is exactly ``token_ids``."""
        length = len(self.token_ids)
        if call.prefix_length != length:
            return False
        if self.hash is None:
            self.hash = _PrefixHash()
        return call.prefix_sha256 == self.hash.of(self.token_ids, length)

    def hash_at(self, end: int) -> str:
        """Returns the hash of the tokens up to ``end``, not less than in earlier calls."""
        if self.end_hash is None:
            self.end_hash = _PrefixHash()
        return self.end_hash.of(self.token_ids, end)

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


class _CallEnds:
    """Finds the drafts in which a call ended with given tokens.

    Most trajectories never ask, so nothing is hashed before the first search.
    """

    def __init__(self) -> None:
        self._unhashed: list[tuple[_SegmentDraft, int]] = []
        self._drafts: dict[tuple[int, str | None], list[_SegmentDraft]] = {}
        """By length and hash of the tokens: drafts in which a call ended with them, in the order of the calls."""

    def add(self, draft: _SegmentDraft) -> None:
        """Note that a call ended with the tokens that ``draft`` has now."""
        self._unhashed.append((draft, len(draft.token_ids)))

    def find(self, length: int, sha256: str | None) -> _SegmentDraft | None:
        """Returns a draft that begins with these tokens: the one that got there last of those that have no more, or
        any if all have; ``None`` if no call ended with them."""
        for draft, end in self._unhashed:
            self._drafts.setdefault((end, draft.hash_at(end)), []).append(draft)
        self._unhashed.clear()
        drafts = self._drafts.get((length, sha256))
        if drafts is None:
            return None
        while len(drafts) > 1 and len(drafts[-1].token_ids) > length:
            drafts.pop()  # it will never end there again
        return drafts[-1]

    def clear(self) -> None:
        """Forget all drafts."""
        self._unhashed.clear()
        self._drafts.clear()


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
        self._current: _SegmentDraft | None = None
        """The draft of the previous call."""
        self._ends = _CallEnds()
        self._of_calls: list[int] = []
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

    def segments_of_calls(self) -> list[int]:
        """Returns the index of each call's segment, in the order of the calls; none if there are no segments."""
        return self._of_calls

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
        draft = self._current
        current = draft.token_ids if draft else None
        if call.prefix_length:
            if draft is None or not draft.is_prefix(call):
                draft = self._ends.find(call.prefix_length, call.prefix_sha256)
            if draft is None:
                self._lose(Defect.BROKEN_PREFIX)
                return
            if len(draft.token_ids) > call.prefix_length:
                context_ids = draft.token_ids[: call.prefix_length] + context_ids
                draft = None
        elif current and context_ids[: len(current)] == current:
            # The SDK sends whole contexts: the tokens of the current segment are the prefix.
            context_ids = context_ids[len(current) :]
        else:
            draft = None
        self._tokens += len(context_ids) + len(sampled_ids)
        if self._tokens > self._max_tokens:
            self._lose(Defect.OVERSIZE)
            return
        if draft is None:
            draft = _SegmentDraft(number=len(self._drafts))
            self._drafts.append(draft)
        self._of_calls.append(draft.number)
        draft.extend(context_ids, call, sampled_ids)
        self._ends.add(draft)
        self._current = draft

    def _lose(self, why: Defect) -> None:
        self.defects.add(why)
        self._lost = True
        self._drafts.clear()
        self._of_calls.clear()
        self._current = None
        self._ends.clear()
