"""Tokens, turns and labels follow from the facts; missing data is never guessed."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.bounds import MAX_SECONDS
from headrace.schemas.events import (
    ContextPruned,
    EndStatus,
    EnvironmentForked,
    EnvironmentRestored,
    EnvironmentSnapshotted,
    ModelCalled,
    Role,
    Sampling,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolErrorClass,
    ToolReturned,
    ToolStatus,
    TrajectoryEnded,
    VersionSpan,
)
from headrace.schemas.model import Record
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect, Segment, Trajectory
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.topics import TRAJECTORIES
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.assembly.assemble import assemble, outputs_of
from headrace.streams.assembly.event_decoder import MAX_NESTING, read_event
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.gaps import NO_GAPS
from headrace.streams.assembly.history import Event, History
from headrace.streams.assembly.segments import SegmentFold
from tests.streams.builders import T0, called, event, facts, log, started

NOWHERE = Reference(partition=0, offset=0)
EMPTY = History("s1", {}, {}, NO_GAPS, (), frozenset(), 0, NOWHERE, NOWHERE, T0, T0, T0, 9)


def assembled(*between: Record, start: Record | None = None) -> Trajectory:
    """A trajectory that starts, does ``between``, and ends."""
    whole: list[Any] = [start or started(), *between, TrajectoryEnded()]
    return assemble([Event(T0, fact) for fact in whole], EMPTY)


def shape(segment: Segment) -> tuple[list[int], list[int], list[float] | None, list[tuple[int | None, int, int]]]:
    return (
        list(segment.token_ids),
        list(segment.loss_mask),
        None if segment.logprobs is None else list(segment.logprobs),
        [(span.version, span.start, span.end) for span in segment.version_spans],
    )


class TestSegments:
    def test_temperatures_travel_with_the_tokens_and_may_differ_in_a_segment(self) -> None:
        def at(temperature: float | None) -> Sampling:
            return Sampling(temperature=temperature, logprobs="processed")

        (segment,) = assembled(
            called([1, 2], [3, 4], sampling=at(1.0)),
            called([5], [6], after=[1, 2, 3, 4], sampling=at(1.0)),
            called([], [7, 8], after=[1, 2, 3, 4, 5, 6], sampling=at(0.6)),
            called([], [], after=[1, 2, 3, 4, 5, 6, 7, 8], sampling=at(1.3)),
            called([], [9], after=[1, 2, 3, 4, 5, 6, 7, 8], sampling=at(None)),
        ).segments
        found = [(span.temperature, span.start, span.end) for span in segment.sampling_spans]
        assert found == [(1.0, 0, 3), (0.6, 3, 5), (None, 5, 6)]

    def test_calls_merge_while_the_context_only_grows(self) -> None:
        result = assembled(called([1, 2], [3, 4]), called([5], [6], after=[1, 2, 3, 4]))
        assert [shape(segment) for segment in result.segments] == [
            ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1], [-0.5, -0.5, -0.5], [(1, 0, 3)])
        ]
        assert (result.defects, result.sampled_tokens) == ([], 3)

    def test_a_rewritten_context_starts_a_segment_whose_context_is_masked(self) -> None:
        result = assembled(called([1, 2], [3]), called([1, 9], [4]))
        assert [shape(segment)[:2] for segment in result.segments] == [([1, 2, 3], [0, 0, 1]), ([1, 9, 4], [0, 0, 1])]
        assert result.defects == []

    def test_a_whole_context_that_begins_with_the_current_one_extends_it(self) -> None:
        whole = assembled(called([1, 2], [3]), called([1, 2, 3, 7], [4]))
        by_prefix = assembled(called([1, 2], [3]), called([7], [4], after=[1, 2, 3]))
        assert whole.segments == by_prefix.segments
        assert len(whole.segments) == 1

    def test_the_same_context_sampled_again_is_a_segment_of_its_own(self) -> None:
        assert len(assembled(called([1, 2], [3]), called([1, 2], [4])).segments) == 2

    @pytest.mark.parametrize("after", [[1, 2], [1, 2, 4], [9, 9, 9], [1, 2, 3, 4]])
    def test_a_prefix_that_is_not_the_current_context_ends_the_tokens(self, after: list[int]) -> None:
        result = assembled(called([1, 2], [3]), called([7], [4], after=after), called([8], [5]))
        assert (result.segments, result.defects) == ([], [Defect.BROKEN_PREFIX])
        assert (result.sampled_tokens, len(result.turns)) == (3, 3)

    def test_the_right_length_with_the_wrong_hash_is_a_broken_prefix(self) -> None:
        call = called([7], [4], prefix_length=3, prefix_sha256=prefix_hash(array("i", [1, 2, 9])))
        assert assembled(called([1, 2], [3]), call).defects == [Defect.BROKEN_PREFIX]

    def test_a_version_change_inside_a_call_keeps_its_position(self) -> None:
        spans = [VersionSpan(version=4, start=0, end=2), VersionSpan(version=5, start=2, end=3)]
        late = [VersionSpan(version=5, start=0, end=1)]
        result = assembled(
            called([1], [2, 3, 4], version_spans=spans), called([], [5], after=[1, 2, 3, 4], version_spans=late)
        )
        assert shape(result.segments[0])[3] == [(4, 0, 2), (5, 2, 4)]
        assert result.versions == [4, 5]

    def test_the_same_version_number_of_two_runs_makes_two_spans(self) -> None:
        spans = [VersionSpan(version=4, start=n, end=n + 1, run=run) for n, run in enumerate(["r", "r", None, "s"])]
        result = assembled(called([1], [2, 3, 4, 5], version_spans=spans), start=started(run="r"))
        (segment,) = result.segments
        assert [(span.run, span.start, span.end) for span in segment.version_spans] == [
            ("r", 0, 2),
            (None, 2, 3),
            ("s", 3, 4),
        ]

    def test_too_many_tokens_are_left_out_and_labelled(self) -> None:
        fold = SegmentFold(max_tokens=5)
        fold.add(called([1, 2], [3]))
        fold.add(called([4, 5], [6], after=[1, 2, 3]))
        assert (fold.segments(), fold.defects) == ([], {Defect.OVERSIZE})

    @given(st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=4), st.lists(st.integers(0, 99), max_size=4))))
    def test_every_sampled_token_is_under_a_mask_exactly_once(self, turns: list[tuple[list[int], list[int]]]) -> None:
        fold = SegmentFold()
        context: list[int] = []
        for number, (fresh, sampled) in enumerate(turns):
            if number % 3 == 2:
                context = []
            fold.add(called(fresh, sampled, after=context))
            context += fresh + sampled
        trained = [
            token
            for segment in fold.segments()
            for token, bit in zip(segment.token_ids, segment.loss_mask, strict=True)
            if bit
        ]
        assert trained == [token for _, sampled in turns for token in sampled]


class TestLabels:
    @pytest.mark.parametrize(
        ("call", "defects"),
        [
            (called(None, None), [Defect.NO_TOKEN_IDS]),
            (called([1], None), [Defect.NO_TOKEN_IDS]),
            (called(None, [1]), [Defect.NO_TOKEN_IDS]),
            (called(None, None, hidden=["context_ids", "sampled_ids"]), [Defect.REDACTED, Defect.NO_TOKEN_IDS]),
            (called([1], [2], logprobs=None, hidden=["logprobs"]), [Defect.REDACTED, Defect.NO_LOGPROBS]),
            (called([1], [2], hidden=["messages"]), []),
            (called([1], [2], logprobs=None), [Defect.NO_LOGPROBS]),
            (called([1], [2], version_spans=[]), [Defect.UNKNOWN_VERSION]),
            (
                called([1], [2], version_spans=[VersionSpan(version=None, start=0, end=1)]),
                [Defect.UNKNOWN_VERSION],
            ),
            (called([1], [2], sampling=Sampling(temperature=1.0, top_p=0.9)), [Defect.TRUNCATED_SAMPLING]),
            (called([1], [2], sampling=Sampling()), [Defect.UNKNOWN_SAMPLING]),
            (called([1], [2], sampling=Sampling(temperature=1.0, logprobs="raw")), []),
            (called([1], [2], sampling=Sampling(temperature=0.7, logprobs="processed")), []),
            (called([1], [2], sampling=Sampling(temperature=0.7, logprobs="raw")), [Defect.UNKNOWN_SAMPLING]),
            (called([1], [2], sampling=Sampling(temperature=0.7)), [Defect.UNKNOWN_SAMPLING]),
            (called([1], [2], sampling=Sampling(temperature=1.0, logit_bias={"2": 5})), [Defect.UNKNOWN_SAMPLING]),
            (called([1], [2], sampling=Sampling(temperature=1.0, top_P=0.5)), [Defect.UNKNOWN_SAMPLING]),
            (called([1], [2], sampling=Sampling(temperature=1.0, logit_bias=None)), []),
            (called([1], [2], sampling=Sampling(temperature=0.0)), [Defect.GREEDY_SAMPLING]),
            (called([1], [2], sampling=Sampling(temperature=0.0099)), [Defect.GREEDY_SAMPLING]),
            *(
                (called([1], [2], sampling=Sampling(temperature=1.0, **altered)), [Defect.ALTERED_SAMPLING])
                for altered in (
                    {"presence_penalty": -0.1},
                    {"frequency_penalty": 0.1},
                    {"repetition_penalty": 1.1},
                    {"min_tokens": 1},
                    {"altered_by": ["structured_output"]},
                )
            ),
            (called([1], []), [Defect.NOTHING_SAMPLED]),
        ],
    )
    def test_missing_parts_of_a_call_are_labels(self, call: ModelCalled, defects: list[Defect]) -> None:
        result = assembled(call)
        assert result.defects == defects
        assert bool(result.segments) == (Defect.NO_TOKEN_IDS not in defects)

    def test_one_call_without_token_ids_leaves_no_segments_at_all(self) -> None:
        result = assembled(called([1], [2]), called(None, None), called([4], [5]))
        assert (result.segments, result.defects) == ([], [Defect.NO_TOKEN_IDS])

    def test_a_missing_log_probability_leaves_its_segment_without_any(self) -> None:
        result = assembled(called([1], [2]), called([3], [4], after=[1, 2], logprobs=None), called([9], [8]))
        assert [segment.logprobs is None for segment in result.segments] == [True, False]

    def test_a_missing_version_leaves_its_segment_without_spans(self) -> None:
        result = assembled(called([1], [2]), called([3], [4], after=[1, 2], version_spans=[]))
        assert result.segments[0].version_spans == []

    @pytest.mark.parametrize(
        ("runs", "defects", "versions"),
        [
            (["r", "r"], [], [1, 2]),
            ([None, None], [], [1, 2]),
            ([None, "r"], [], [1, 2]),
            (["other", "other"], [Defect.OTHER_RUN], []),
            (["other", "r"], [Defect.OTHER_RUN], [2]),
            (["r", "other"], [Defect.OTHER_RUN], [1]),
            ([None, "other"], [Defect.OTHER_RUN], [1]),
            (["other", "third"], [Defect.OTHER_RUN], []),
        ],
    )
    def test_tokens_sampled_by_another_runs_policy_are_labelled_and_have_no_version(
        self, runs: list[str | None], defects: list[Defect], versions: list[int]
    ) -> None:
        spans = [VersionSpan(version=n + 1, start=0, end=1, run=run) for n, run in enumerate(runs)]
        calls = [called([n, 9], [2], version_spans=[span]) for n, span in enumerate(spans)]
        result = assembled(*calls, start=started(run="r"))
        assert (result.defects, result.versions) == (defects, versions)

    def test_without_a_start_no_run_counts_as_another(self) -> None:
        spans = [VersionSpan(version=1, start=0, end=1, run="r")]
        result = assemble([Event(T0, called([1], [2], version_spans=spans)), Event(T0, TrajectoryEnded())], EMPTY)
        assert (result.defects, result.versions) == ([Defect.NO_START], [1])

    def test_consent_and_role_come_from_the_start(self) -> None:
        refused = assembled(called([1], [2]), start=started(consent=False, role=Role.FROZEN))
        assert refused.defects == [Defect.NO_CONSENT, Defect.FROZEN_ROLE]

    def test_without_a_start_and_without_a_model_call_both_are_labelled(self) -> None:
        result = assemble([Event(T0, TrajectoryEnded())], EMPTY)
        assert result.defects == [Defect.NO_START, Defect.NOTHING_SAMPLED]


class TestTurns:
    def test_a_tool_call_and_its_return_are_paired_in_the_calling_turn(self) -> None:
        result = assembled(
            called([1], [2], finish_reason="stop"),
            ToolCalled(call_id="a", tool="search", arguments={"q": "x"}),
            called([3], [4]),
            ToolReturned(call_id="a", tool="search", result=["found"], latency_s=2.0),
        )
        assert [len(turn.tools) for turn in result.turns] == [1, 0]
        (use,) = result.turns[0].tools
        assert (use.arguments, use.result, use.status, use.latency_s) == ({"q": "x"}, ["found"], ToolStatus.OK, 2.0)
        assert result.tools["search"].model_dump() == {"calls": 1, "errors": {}, "seconds": 2.0}

    def test_calls_of_one_id_pair_in_order(self) -> None:
        pair = [ToolCalled(call_id="a", tool="t"), ToolReturned(call_id="a", tool="t", result=1)]
        again = [ToolCalled(call_id="a", tool="t"), ToolReturned(call_id="a", tool="t", result=2)]
        result = assembled(called([1], [2]), *pair, *again)
        assert [use.result for use in result.turns[0].tools] == [1, 2]

    def test_an_unreturned_call_and_an_uncalled_return_are_kept_unpaired(self) -> None:
        result = assembled(
            called([1], [2]), ToolCalled(call_id="a", tool="t"), ToolReturned(call_id="b", tool="t", result=7)
        )
        assert [(use.call_id, use.status, use.result) for use in result.turns[0].tools] == [
            ("a", None, None),
            ("b", ToolStatus.OK, 7),
        ]
        assert result.tools["t"].calls == 2

    def test_failures_are_counted_by_their_cause(self) -> None:
        failed = {"tool": "t", "status": ToolStatus.ERROR}
        result = assembled(
            ToolReturned(call_id="a", error_class=ToolErrorClass.TIMEOUT, **failed), ToolReturned(call_id="b", **failed)
        )
        assert result.tools["t"].errors == {"timeout": 1, "unclassified": 1}

    @pytest.mark.parametrize("seconds", [b"1e400", b"1e10", b"NaN", b"-1"])
    def test_an_absurd_latency_is_a_bad_event_and_does_not_spoil_the_record(self, seconds: bytes) -> None:
        returned = b'{"call_id":"a","tool":"t","latency_s":' + seconds + b"}"
        record = event("s1", 1, ToolReturned(call_id="a", tool="t"), value=returned)
        with pytest.raises(UnreadableRecord):
            read_event(arrival_of(record))

    def test_the_longest_latencies_add_up_to_a_number(self) -> None:
        result = assembled(*[ToolReturned(call_id="a", tool="t", latency_s=MAX_SECONDS)] * 100)
        assert Trajectory.model_validate_json(result.model_dump_json()).tools["t"].seconds >= MAX_SECONDS

    def test_events_before_the_first_model_call_form_a_turn_without_sampling(self) -> None:
        result = assembled(ToolCalled(call_id="a", tool="t"), called([1], [2, 3]))
        assert [(turn.sampled_tokens, len(turn.tools)) for turn in result.turns] == [(0, 1), (2, 0)]
        assert result.total_steps == 1

    def test_prunes_and_summaries_belong_to_the_turn_they_follow(self) -> None:
        whole: list[Any] = facts("ask", "prune", "ask", "summarize", "answer")
        result = assemble([Event(T0, fact) for fact in whole], EMPTY)
        assert [(turn.pruned_ids, turn.summarized) for turn in result.turns] == [
            (["p1"], False),
            ([], True),
            ([], False),
        ]
        assert len(result.segments) == 3

    def test_a_turn_has_the_last_snapshot_taken_after_it(self) -> None:
        result = assembled(
            EnvironmentSnapshotted(snapshot_id="before"),
            called([1], [2]),
            EnvironmentSnapshotted(snapshot_id="one"),
            EnvironmentSnapshotted(snapshot_id="two"),
            called([1, 2], [3]),
            EnvironmentForked(snapshot_id="two", forks=3),
            EnvironmentRestored(snapshot_id="one"),
        )
        assert [turn.snapshot_id for turn in result.turns] == ["two", None]

    def test_two_prunes_of_a_turn_add_up(self) -> None:
        prune = {"tokens_before": 5, "tokens_after": 4}
        result = assembled(
            called([1], [2]), ContextPruned(pruned_ids=["a"], **prune), ContextPruned(pruned_ids=["b"], **prune)
        )
        assert result.turns[0].pruned_ids == ["a", "b"]

    @pytest.mark.parametrize(("steps", "critical"), [((6, 9, 4, 7), 12), ((7, 7, 6, 6), 10)])
    def test_critical_steps_count_the_slowest_subagent_of_a_stage(self, steps: tuple[int, ...], critical: int) -> None:
        begun = [SubagentStarted(name=f"a{n}", sub_trajectory_id=f"s{n}", stage=1) for n in range(4)]
        done = [
            SubagentFinished(name=f"a{n}", sub_trajectory_id=f"s{n}", stage=1, steps=count)
            for n, count in enumerate(steps)
        ]
        done[3] = done[3].model_copy(update={"status": EndStatus.FAILED})
        result = assembled(called([1], [2]), called([3], [4]), *begun, *done, called([5], [6]))
        assert (result.critical_steps, result.total_steps) == (critical, 29)
        assert (result.subagents_assigned, result.subagents_finished) == (4, 3)


def concluded(*between: Record, payloads: dict[int, bytes] | None = None) -> list[tuple[str, bytes]]:
    """Topic and payload of the record for a history, by the production code path."""
    fold = PartitionFold(FoldLimits())
    whole = [started(), *between, TrajectoryEnded()]
    records = [event("s1", n, fact, value=(payloads or {}).get(n)) for n, fact in enumerate(whole)]
    return [
        (outgoing.topic.name, outgoing.message.value)
        for record in log(records)
        for outcome in fold.arrive(record)
        for outgoing in outputs_of(outcome)
    ]


class TestRecord:
    @pytest.mark.parametrize(("depth", "fits"), [(MAX_NESTING - 1, True), (MAX_NESTING, False), (190, False)])
    def test_payloads_the_next_parser_could_not_read_are_refused(self, depth: int, fits: bool) -> None:
        nested = b'{"call_id":"c","tool":"t","result":' + b"[" * depth + b"]" * depth + b"}"
        out = concluded(called([1], [2]), ToolReturned(call_id="c", tool="t"), payloads={2: nested})
        assert [topic for topic, _ in out] == ["trajectories"] + ([] if fits else ["dead-letters"])
        result = Trajectory.model_validate_json(out[0][1])
        assert result.defects == ([] if fits else [Defect.BAD_EVENT])

    def test_brackets_inside_text_are_not_depth(self) -> None:
        text = ToolReturned(call_id="c", tool="t", result='\\"[[{{' * 100)
        assert [topic for topic, _ in concluded(called([1], [2]), text)] == ["trajectories"]

    def test_a_record_too_large_for_the_topic_is_written_without_bulk_and_labelled(self) -> None:
        numbers = b'{"call_id":"c","tool":"t","result":[' + b",".join([b"1e15"] * 180_000) + b"]}"
        many = [ToolReturned(call_id="c", tool="t") for _ in range(9)]
        (out,) = concluded(called([1], [2]), *many, payloads=dict.fromkeys(range(2, 11), numbers))
        result = Trajectory.model_validate_json(out[1])
        assert (result.segments, result.turns, result.defects) == ([], [], [Defect.OVERSIZE])
        assert result.status is EndStatus.COMPLETED
        assert len(out[1]) < TRAJECTORIES.max_bytes

    @pytest.mark.parametrize("answer", [float("inf"), float("nan"), 10**400, "\x00\u2028", {"a": [None, True, 1e300]}])
    def test_any_answer_is_readable_by_the_next_processor(self, answer: Any) -> None:
        result = assemble([Event(T0, started()), Event(T0, TrajectoryEnded(answer=answer))], EMPTY)
        assert Trajectory.model_validate_json(result.model_dump_json()).status is EndStatus.COMPLETED
