"""Where turns begin and end in the tokens of a trajectory."""

import math
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.transcript.pieces import Piece, by_logprob, by_version, events_of, pieces_of
from headrace.schemas.events import ToolErrorClass, ToolStatus
from headrace.schemas.records.trajectory import ToolUse, Turn
from tests.trainer.builders import segment, trajectory


def with_turns(*segments, counts):
    """Returns a trajectory whose turns sampled ``counts`` = [(segment, tokens), …]."""
    turns = [Turn(sampled_tokens=count, segment=number) for number, count in counts]
    return trajectory("t", *segments).model_copy(update={"turns": turns})


def test_context_and_the_turns_alternate():
    found = pieces_of(with_turns(segment("ccSScSc"), counts=[(0, 2), (0, 1)]))
    assert found == [
        Piece(0, None, 0, 2),
        Piece(0, 0, 2, 4, 0),
        Piece(0, None, 4, 5),
        Piece(0, 1, 5, 6, 2),
        Piece(0, None, 6, 7),
    ]


def test_turns_without_context_between_them_are_told_apart():
    found = pieces_of(with_turns(segment("cSSS"), counts=[(0, 1), (0, 2)]))
    assert [(each.turn, each.start, each.end) for each in found] == [(None, 0, 1), (0, 1, 2), (1, 2, 4)]


def test_turns_of_segments_are_not_mixed_up():
    found = pieces_of(with_turns(segment("cS"), segment("cSS"), counts=[(1, 2), (0, 1)]))
    assert [(each.segment, each.turn) for each in found if each.is_sampled] == [(0, 1), (1, 0)]


def test_records_without_a_turns_segment_name_turns_only_if_there_is_one_segment():
    assert [each.turn for each in pieces_of(with_turns(segment("cS"), counts=[(None, 1)])) if each.is_sampled] == [0]
    several = with_turns(segment("cS"), segment("cS"), counts=[(None, 1), (None, 1)])
    assert [each.turn for each in pieces_of(several) if each.is_sampled] == [None, None]


@given(st.lists(st.text("cS", min_size=1, max_size=20), min_size=1, max_size=3), st.data())
def test_pieces_tile_every_segment_and_agree_with_its_mask(texts, data):
    counts = []
    for number, text in enumerate(texts):
        left = text.count("S")
        while left:
            part = data.draw(st.integers(1, left))
            counts.append((number, part))
            left -= part
    segments = [
        segment(text, versions=data.draw(st.lists(st.integers(0, 2), min_size=(n := text.count("S")), max_size=n)))
        for text in texts
    ]
    record = with_turns(*segments, counts=counts)
    found = pieces_of(record)
    for number, each in enumerate(segments):
        own = [piece for piece in found if piece.segment == number]
        assert [own[0].start, own[-1].end] == [0, len(each.token_ids)]
        assert all(a.end == b.start for a, b in pairwise(own))
        for piece in own:
            assert set(each.loss_mask[piece.start : piece.end]) == {int(piece.is_sampled)}
            for stretches in (by_version(each, piece), by_logprob(each, piece)):
                assert sum(one.end - one.start for one in stretches) == (piece.end - piece.start) * piece.is_sampled
    sizes = Counter[int | None]()
    for piece in found:
        sizes[piece.turn] += (piece.end - piece.start) * piece.is_sampled
    assert [sizes[turn] for turn in range(len(counts))] == [count for _, count in counts]


def test_stretches_by_version_and_by_log_probability():
    given_segment = segment("cSSSS", versions=[4, 4, 5, 5], logprobs=[-0.05, -0.5, -2.0, -9.0])
    (piece,) = [each for each in pieces_of(with_turns(given_segment, counts=[(0, 4)])) if each.is_sampled]
    versions = by_version(given_segment, piece)
    assert [(each.start, each.end, each.value) for each in versions if each.end > each.start] == [
        (1, 2, 4),
        (2, 3, 4),
        (3, 4, 5),
        (4, 5, 5),
    ]
    assert [each.value for each in by_logprob(given_segment, piece)] == [-0.1, -1.0, -3.0, -math.inf]


def test_what_is_unknown_is_one_stretch_without_a_value():
    bare = segment("cSS").model_copy(update={"logprobs": None, "version_spans": []})
    (piece,) = [each for each in pieces_of(with_turns(bare, counts=[(0, 2)])) if each.is_sampled]
    assert [each.value for each in by_version(bare, piece)] == [None]
    assert [each.value for each in by_logprob(bare, piece)] == [None]


def test_the_events_of_a_turn():
    turn = Turn(
        tools=[
            ToolUse(call_id="1", tool="search", arguments={"query": "ada"}, status=ToolStatus.OK, result="c12"),
            ToolUse(call_id="2", tool="read", status=ToolStatus.ERROR, error_class=ToolErrorClass.TIMEOUT, latency_s=2),
            ToolUse(call_id="3", tool="read"),
        ],
        pruned_ids=["c1", "c2"],
        summarized=True,
        snapshot_id="s1",
        finish_reason="length",
    )
    assert events_of(turn) == [
        "tool search(query='ada') → ok: c12",
        "tool read() → error (timeout) in 2 s",
        "tool read() → no return",
        "pruned c1, c2",
        "summarised its context",
        "snapshot s1",
        "finished by length",
    ]
