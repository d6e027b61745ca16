"""Where attempts part."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.transcript.divergence import Act, acts_of, all_part_at, parts_at
from headrace.schemas.records.trajectory import ToolUse, Turn
from tests.trainer.builders import segment, trajectory


def act(*tokens: int, tools: tuple[str, ...] = ()) -> Act:
    return Act(tokens, "", tools)


def test_attempts_part_at_the_first_turn_in_which_they_say_or_do_another_thing() -> None:
    one = [act(1), act(2, tools=("read a",)), act(3)]
    assert parts_at(one, [act(1), act(2, tools=("read a",)), act(4)]) == 2
    assert parts_at(one, [act(1), act(2, tools=("read b",)), act(3)]) == 1
    assert parts_at(one, one[:2]) == 2
    assert parts_at(one, list(one)) is None
    assert all_part_at([one, list(one), [act(9)]]) == 0
    assert all_part_at([one]) is None


attempts = st.lists(st.builds(Act, st.tuples(st.integers(0, 1)), st.just(""), st.just(())), max_size=4)


@given(attempts, attempts)
def test_before_the_turn_at_which_they_part_attempts_are_equal(one: list[Act], other: list[Act]) -> None:
    turn = parts_at(one, other)
    assert turn == parts_at(other, one)
    if turn is None:
        assert one == other
    else:
        assert one[:turn] == other[:turn]
        assert one[turn : turn + 1] != other[turn : turn + 1]


def test_what_was_said_is_the_sampled_tokens_or_the_answer_and_what_was_done_the_calls() -> None:
    record = trajectory("t", segment("ccSSc"))
    turns = [
        Turn(sampled_tokens=2, segment=0, tools=[ToolUse(call_id="1", tool="read", arguments={"b": 1, "a": 2})]),
        Turn(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": "Yes."}]),
    ]
    first, second = acts_of(record.model_copy(update={"turns": turns}))
    assert first.token_ids == tuple(record.segments[0].token_ids[2:4])
    assert first.tools == ("read [('a', 2), ('b', 1)]",)
    assert (second.token_ids, second.text) == ((), "Yes.")
