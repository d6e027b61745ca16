"""A call continues or forks any earlier call of its trajectory, in time and space that are linear in the tokens."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.events import ModelCalled, ToolCalled, TrajectoryEnded, VersionSpan
from headrace.schemas.records.trajectory import Defect, Segment, Trajectory
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.wire import decode
from headrace.streams.assembly import segments, trajectory_writer
from headrace.streams.assembly.assemble import conclude
from headrace.streams.assembly.segments import MAX_TOKENS, SegmentFold
from headrace.streams.native.available import SPEEDUPS
from tests.streams.builders import called, event, session, started
from tests.streams.native.test_trajectories import history_of


def folded(*calls: ModelCalled, max_tokens: int = MAX_TOKENS) -> SegmentFold:
    """The fold after ``calls``, in order."""
    fold = SegmentFold(max_tokens)
    for call in calls:
        fold.add(call)
    return fold


def tokens(fold: SegmentFold) -> list[tuple[list[int], list[int]]]:
    """Tokens and loss mask of each segment."""
    return [(list(each.token_ids), list(each.loss_mask)) for each in fold.segments()]


class TestChoice:
    def test_a_call_after_an_earlier_call_forks_and_its_prefix_is_masked(self) -> None:
        fold = folded(
            called([1, 2], [3, 4]), called([5], [6], after=[1, 2, 3, 4]), called([7], [8, 9], after=[1, 2, 3, 4])
        )
        assert tokens(fold) == [
            ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1]),
            ([1, 2, 3, 4, 7, 8, 9], [0, 0, 0, 0, 0, 1, 1]),
        ]
        assert (fold.defects, fold.sampled_tokens) == (set(), 5)

    def test_branches_that_take_turns_stay_one_segment_each(self) -> None:
        fold = folded(
            called([1], [2]),
            called([8], [9]),
            called([3], [4], after=[1, 2]),
            called([7], [6], after=[8, 9]),
            called([5], [5], after=[1, 2, 3, 4]),
        )
        assert tokens(fold) == [([1, 2, 3, 4, 5, 5], [0, 1, 0, 1, 0, 1]), ([8, 9, 7, 6], [0, 1, 0, 1])]
        assert fold.segments_of_calls() == [0, 1, 0, 1, 0]
        fold.add(called(None, None))
        assert fold.segments_of_calls() == fold.segments() == []

    def test_answers_to_one_request_are_siblings(self) -> None:
        first, *choices = called([1], [2]), *(called([3], [n], after=[1, 2], choice=n) for n in range(3))
        assert tokens(folded(first, *choices)) == [
            ([1, 2, 3, 0], [0, 1, 0, 1]),
            ([1, 2, 3, 1], [0, 0, 0, 1]),
            ([1, 2, 3, 2], [0, 0, 0, 1]),
        ]

    def test_a_fork_is_continued_and_forked_like_any_other_segment(self) -> None:
        fold = folded(
            called([1], [2]),
            called([3], [4], after=[1, 2]),
            called([5], [6], after=[1, 2]),
            called([7], [8], after=[1, 2, 5, 6]),
            called([9], [9], after=[1, 2, 5, 6]),
            called([3], [3], after=[1, 2, 3, 4]),
        )
        assert tokens(fold) == [
            ([1, 2, 3, 4, 3, 3], [0, 1, 0, 1, 0, 1]),
            ([1, 2, 5, 6, 7, 8], [0, 0, 0, 1, 0, 1]),
            ([1, 2, 5, 6, 9, 9], [0, 0, 0, 0, 0, 1]),
        ]

    def test_of_equal_drafts_the_one_that_got_there_last_continues_then_the_other_and_then_a_fork_begins(self) -> None:
        begun = [called([1], [2]), called([1], [2]), called([5], [6])]
        fold = folded(*begun, *(called([n], [n], after=[1, 2]) for n in (7, 8, 9)))
        assert tokens(fold) == [
            ([1, 2, 8, 8], [0, 1, 0, 1]),
            ([1, 2, 7, 7], [0, 1, 0, 1]),
            ([5, 6], [0, 1]),
            ([1, 2, 9, 9], [0, 0, 0, 1]),
        ]

    def test_getting_there_last_is_a_matter_of_calls_and_not_of_drafts(self) -> None:
        """The first draft reaches [1, 2, 3] after the last, which began later."""
        others = [called([9], [9]), called([1, 2], [3])]
        fold = folded(called([1], [2]), *others, called([], [3], after=[1, 2]), called([4], [5], after=[1, 2, 3]))
        assert tokens(fold) == [([1, 2, 3, 4, 5], [0, 1, 1, 0, 1]), ([9, 9], [0, 1]), ([1, 2, 3], [0, 0, 1])]

    def test_a_whole_context_continues_the_previous_calls_draft_and_no_other(self) -> None:
        branches = [called([1], [2]), called([8], [9])]
        assert len(tokens(folded(*branches, called([8, 9, 3], [4])))) == 2
        assert len(tokens(folded(*branches, called([1, 2, 3], [4])))) == 3
        back = called([3], [4], after=[1, 2])
        assert len(tokens(folded(*branches, back, called([1, 2, 3, 4, 5], [6])))) == 2

    @pytest.mark.parametrize(
        "after", [[1], [1, 2, 3], [8, 9, 7], [1, 2, 8, 9], [1, 9]], ids=["context", "longer", "other", "both", "edited"]
    )
    def test_a_prefix_with_which_no_call_ended_is_broken(self, after: list[int]) -> None:
        fold = folded(called([1], [2]), called([8], [9]), called([5], [6], after=after), called([1], [2]))
        assert (tokens(fold), fold.defects) == ([], {Defect.BROKEN_PREFIX})

    def test_length_and_hash_must_belong_to_the_same_call(self) -> None:
        crossed = called([5], [6], prefix_length=2, prefix_sha256=prefix_hash(array("i", [7, 8, 9])))
        fold = folded(called([1], [2]), called([7, 8], [9]), called([3], [4]), crossed)
        assert fold.defects == {Defect.BROKEN_PREFIX}

    def test_a_fork_has_labels_of_its_own_tokens_only(self) -> None:
        fold = folded(
            called([1], [2], logprobs=None, version_spans=[]),
            called([3], [4], after=[1, 2]),
            called([5], [6, 7], after=[1, 2], version_spans=[VersionSpan(version=9, start=0, end=2)]),
        )
        parent, fork = fold.segments()
        assert (parent.logprobs, parent.version_spans) == (None, [])
        assert (list(fork.logprobs or ()), [(each.version, each.end) for each in fork.version_spans]) == (
            [-0.5, -0.5],
            [(9, 2)],
        )
        assert [(each.start, each.end) for each in fork.sampling_spans] == [(0, 2)]


@dataclass
class Slow:
    """The rule once more: lists are compared as a whole, nothing is hashed, and no draft is forgotten."""

    max_tokens: int
    drafts: list[list[tuple[int, float | None]]] = field(default_factory=list)
    """Tokens of each draft; log-probability of those that it sampled, ``None`` on context."""
    ends: list[tuple[int, list[int]]] = field(default_factory=list)
    """For each call the number of its draft, and all tokens at its end."""
    defect: Defect | None = None

    def ids(self, draft: int) -> list[int]:
        return [token for token, _ in self.drafts[draft]]

    def call(self, prefix: list[int], context: list[int], sampled: list[int], logprobs: list[float]) -> None:
        if self.defect:
            return
        draft, begins_with = self.place(prefix, context)
        if draft is None and begins_with is None:
            self.defect = Defect.BROKEN_PREFIX
            return
        if draft is None:
            draft = len(self.drafts)
            self.drafts.append([(token, None) for token in begins_with or []])
        whole = prefix or context[: len(self.ids(draft))] != self.ids(draft)
        added = context if whole else context[len(self.ids(draft)) :]
        self.drafts[draft] += [(token, None) for token in added]
        self.drafts[draft] += zip(sampled, logprobs, strict=True)
        self.ends.append((draft, self.ids(draft)))
        if sum(map(len, self.drafts)) > self.max_tokens:
            self.defect = Defect.OVERSIZE

    def place(self, prefix: list[int], context: list[int]) -> tuple[int | None, list[int] | None]:
        """The draft to continue, or the tokens with which a new one begins."""
        if not prefix:
            held = self.ids(self.ends[-1][0]) if self.ends else []
            return (self.ends[-1][0], None) if held and context[: len(held)] == held else (None, [])
        at_prefix = [draft for draft, ended in self.ends if ended == prefix]
        continued = [draft for draft in at_prefix if self.ids(draft) == prefix]
        if continued:
            return continued[-1], None
        return None, (prefix if at_prefix else None)

    def segments(self) -> list[tuple[list[int], list[int], list[float]]]:
        if self.defect:
            return []
        return [
            (
                [token for token, _ in draft],
                [int(logprob is not None) for _, logprob in draft],
                [logprob for _, logprob in draft if logprob is not None],
            )
            for draft in self.drafts
        ]


WAYS = ("extend", "extend", "fork", "fork", "fork", "whole", "new", "edit")
few_tokens = st.lists(st.integers(1, 2), max_size=2)
"""So few that calls often end with the same tokens."""


@st.composite
def trees(draw: st.DrawFn) -> tuple[Slow, list[ModelCalled]]:
    """A random tree of calls, in an order in which each follows its parent: their fold by the slow rule, and their
    events. Each sampled token has a log-probability of its own.
    """
    slow = Slow(draw(st.sampled_from([12, 40, MAX_TOKENS])))
    ends: list[list[int]] = [[]]
    calls: list[ModelCalled] = []
    count = 0
    for _ in range(draw(st.integers(1, 14))):
        way = draw(st.sampled_from(WAYS))
        held = list(ends[-1] if way == "extend" else draw(st.sampled_from(ends)))
        context, sampled = draw(few_tokens), draw(few_tokens)
        if way == "edit" and held:  # a client that changes one token of what it sends again
            held[draw(st.integers(0, len(held) - 1))] = draw(st.integers(1, 2))
        names_it = way != "whole" and (way != "edit" or draw(st.integers(0, 2)) == 0)
        if not names_it:
            held, context = [], [*held, *context]
        if way == "new":
            held = []
        logprobs = [-(count + n) / 1024 for n in range(len(sampled))]  # exact in float32
        count += len(sampled)
        calls.append(called(context, sampled, after=held, logprobs=logprobs))
        slow.call(held, context, sampled, logprobs)
        ends.append([*held, *context, *sampled])
    return slow, calls


def plain(segment: Segment) -> tuple[list[int], list[int], list[float]]:
    return list(segment.token_ids), list(segment.loss_mask), list(segment.logprobs or ())


@given(trees())
@settings(max_examples=500, deadline=None)
def test_any_tree_of_calls_gives_the_segments_of_the_slow_rule(tree: tuple[Slow, list[ModelCalled]]) -> None:
    slow, calls = tree
    fold = folded(*calls, max_tokens=slow.max_tokens)
    assert [plain(each) for each in fold.segments()] == slow.segments()
    assert fold.defects - {Defect.NOTHING_SAMPLED} == ({slow.defect} if slow.defect else set())


@given(trees())
@settings(max_examples=300, deadline=None)
def test_each_sampled_token_is_trainable_in_exactly_one_segment(tree: tuple[Slow, list[ModelCalled]]) -> None:
    _, calls = tree
    fold = folded(*calls)
    if fold.defects:
        assert fold.segments() == []
        return
    sampled = {
        logprob: token
        for call in calls
        for token, logprob in zip(call.sampled_ids or (), call.logprobs or (), strict=True)
    }
    trained: Counter[tuple[float, int]] = Counter()
    for segment in fold.segments():
        ids = [token for token, mine in zip(segment.token_ids, segment.loss_mask, strict=True) if mine]
        trained.update(zip(segment.logprobs or (), ids, strict=True))
    assert trained == Counter(sampled.items())


class CountedHash:
    """A SHA-256 that counts the bytes of tokens of all its instances."""

    total = 0

    def __init__(self, data: bytes = b"", **_: Any) -> None:
        self._hash = hashlib.sha256(data)

    def update(self, data: Any) -> None:
        CountedHash.total += len(memoryview(data).cast("B"))
        self._hash.update(data)

    def digest(self) -> bytes:
        return self._hash.digest()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def hashed_by_python(calls: Sequence[ModelCalled], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(segments, "hashlib", SimpleNamespace(sha256=CountedHash))
    CountedHash.total = 0
    assert not folded(*calls).defects
    return CountedHash.total


def hashed_by_extension(calls: Sequence[ModelCalled], monkeypatch: pytest.MonkeyPatch) -> int:
    if SPEEDUPS is None:
        pytest.skip("the extension module is not built")
    monkeypatch.setattr(trajectory_writer, "hashlib", SimpleNamespace(sha1=hashlib.sha1, sha256=CountedHash))
    writer, _ = trajectory_writer.make_writer(SPEEDUPS.EVENT_FIELDS)
    monkeypatch.setattr(trajectory_writer, "_WRITER", writer)
    history = history_of([event("s1", n, fact) for n, fact in enumerate([started(), *calls])])
    CountedHash.total = 0
    assert trajectory_writer.plainly_written(history) is not None
    return CountedHash.total


def chain(count: int) -> list[ModelCalled]:
    """Calls that extend one another by 3 tokens."""
    return [called([n, n], [n], after=[m for m in range(n) for _ in range(3)]) for n in range(count)]


def forks(count: int, length: int) -> list[ModelCalled]:
    """Calls that all fork the first, of ``length`` tokens."""
    first = list(range(length))
    return [called(first[:-1], first[-1:]), *(called([n], [n], after=first) for n in range(count))]


def there_and_back(count: int) -> list[ModelCalled]:
    """A chain of ``count`` calls, all of which are then forked, the last first."""
    calls = chain(count)
    return [*calls, *(called([7], [8], after=[m for m in range(n) for _ in range(3)]) for n in range(count - 1, 0, -1))]


HASHED: list[Callable[[Sequence[ModelCalled], pytest.MonkeyPatch], int]] = [hashed_by_python, hashed_by_extension]


@pytest.mark.parametrize("hashed", HASHED)
class TestCost:
    def test_a_long_chain_hashes_each_token_once(
        self, hashed: Callable[..., int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert hashed(chain(1000), monkeypatch) == 4 * 3 * 999, "4 bytes a token, without the last call's"

    def test_whole_contexts_hash_nothing(self, hashed: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
        rewritten = [called([n, *range(500)], [n]) for n in range(100)]
        assert hashed(rewritten, monkeypatch) == 0

    @pytest.mark.parametrize("calls", [forks(1000, 900), there_and_back(200)], ids=["forks", "there and back"])
    def test_a_token_of_a_segment_is_hashed_twice_at_most(
        self, hashed: Callable[..., int], monkeypatch: pytest.MonkeyPatch, calls: list[ModelCalled]
    ) -> None:
        total = sum(len(each.token_ids) for each in folded(*calls).segments())
        assert 0 < hashed(calls, monkeypatch) <= 2 * 4 * total


@pytest.mark.parametrize("native", [False, True])
def test_masked_prefixes_count_towards_the_most_tokens(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand forks of a long prefix are a few kilobytes of events and would be a hundred million tokens."""
    if not native:
        monkeypatch.setattr(trajectory_writer, "_WRITER", None)
    length = 100_000
    fit = forks(MAX_TOKENS // (length + 2), length)
    for calls, defects in ((fit, []), (forks(1000, length), [Defect.OVERSIZE])):
        history = history_of([event("s1", n, fact) for n, fact in enumerate([started(), *calls])])
        result = Trajectory.model_validate_json(conclude(history)[0].message.value)
        assert result.defects == defects
        assert len(result.segments) == (0 if defects else len(fit) - 1)
        assert result.sampled_tokens == len(calls)


def test_the_bound_is_exact() -> None:
    calls = forks(3, 10)  # 12 tokens, and 12 in each of two forks
    assert not folded(*calls, max_tokens=36).defects
    assert folded(*calls, max_tokens=35).defects == {Defect.OVERSIZE}


def test_a_session_that_goes_back_is_whole() -> None:
    history = history_of(session("s1", "ask", "tool", "ask", "back", "ask", "back", "answer"))
    result = Trajectory.model_validate_json(conclude(history)[0].message.value)
    assert (result.defects, len(result.segments), result.sampled_tokens) == ([], 3, 12)


@pytest.mark.parametrize("with_module", [False, True])
def test_a_turn_names_the_segment_of_its_call(with_module: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a tool call before the first model call, which is a turn without one."""
    if not with_module:
        monkeypatch.setattr(trajectory_writer, "_WRITER", None)
    elif SPEEDUPS is None:
        pytest.skip("the module is not built")
    facts = [
        started(),
        ToolCalled(call_id="c", tool="t"),
        called([1], [2]),
        called([8], [9]),
        called([3], [4], after=[1, 2]),
        called([7], [6], after=[8, 9]),
        TrajectoryEnded(continuations=3),
    ]
    outputs, _ = conclude(history_of([event("t", number, fact) for number, fact in enumerate(facts)]))
    found = decode(outputs.message.headers, outputs.message.value)[1]
    assert isinstance(found, Trajectory)
    assert [turn.segment for turn in found.turns] == [None, 0, 1, 0, 1]
    assert found.continuations == 3
