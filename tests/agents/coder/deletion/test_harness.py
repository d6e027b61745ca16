"""The rules of an attempt: any message has a defined effect on the context."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.coder.deletion.actions import NAMES, Action, Malformed, parse, schemas
from headrace.agents.coder.deletion.harness import DeletionHarness, DeletionLimits
from tests.agents.coder.deletion.scripted_model import results_in, said


def harness(**limits: int) -> DeletionHarness:
    return DeletionHarness("graphlib.py", "TopologicalSorter.done", "test_graphlib.py", DeletionLimits(**limits))


def test_the_task_is_the_first_message() -> None:
    (message,) = harness().messages
    assert message["role"] == "user"
    assert "TopologicalSorter.done was deleted from graphlib.py, and tests in test_graphlib.py" in message["content"]


def test_calls_are_carried_out_in_order_and_answered() -> None:
    playing = harness(result_characters=10)
    read, grep = playing.act(said(("read", {"path": "a.py"}), ("grep", {"pattern": "x"})))
    assert read.arguments == {"path": "a.py", "start": 1, "lines": 200}
    assert grep.arguments == {"pattern": "x", "path": "."}
    playing.answered(read, "0123456789abc")
    playing.answered(grep, "no", is_error=True)
    assert results_in(playing.messages) == ["0123456789\n[cut off: 3 more characters]", "error: no"]
    assert playing.metrics["tool_errors"] == 1


def test_nothing_is_carried_out_after_submit_or_beyond_the_calls_of_a_message() -> None:
    playing = harness(calls=2)
    assert playing.act(said(("submit", {}), ("run_tests", {}))) == []
    assert playing.is_over
    assert results_in(playing.messages) == ["submitted", "error: not carried out: the attempt has ended"]
    many = harness(calls=2)
    assert len(many.act(said(*[("run_tests", {})] * 3))) == 2
    assert results_in(many.messages)[2] == "error: not carried out: at most 2 calls a message"


def test_a_cut_off_message_submits_nothing() -> None:
    playing = harness()
    assert playing.act(said(("submit", {})), was_cut=True) == []
    assert not playing.is_over


def test_the_to_do_list_is_bounded_and_its_open_items_are_counted() -> None:
    playing = harness()
    playing.act(said(("todo_add", {"item": "a"}), ("todo_add", {"item": "b"}), ("todo_done", {"item": "a"})))
    playing.act(said(("todo_done", {"item": "c"}), ("todo_add", {"item": "x" * 300})))
    assert playing.metrics["open_todos"] == 1
    assert playing.errors == 2
    assert [each.startswith("error: ") for each in results_in(playing.messages)] == [False, False, False, True, True]


def test_half_of_a_surrogate_pair_is_an_error_and_is_not_repeated() -> None:
    """JSON's escapes can express it, UTF-8 cannot: a gateway refuses every later message of such a conversation."""
    playing = harness()
    assert (
        playing.act(said(("todo_add", {"item": "\ud800"}), ("edit", {"path": "a.py", "old": "", "new": "\udc00"})))
        == []
    )
    assert playing.errors == 2
    assert all("is not valid text" in each for each in results_in(playing.messages))
    json.dumps(results_in(playing.messages), ensure_ascii=False).encode()  # raises if there is half of one
    (edit,) = playing.act(said(("edit", {"path": "a.py", "old": "", "new": "\ud83d\ude00"})))
    assert edit.arguments["new"] == "😀"


def test_turns_end_the_attempt() -> None:
    playing = harness(turns=2)
    playing.act({"role": "assistant", "content": "Hm."})
    assert not playing.is_over
    playing.act({"role": "assistant", "content": None})
    assert playing.is_over
    assert playing.errors == 2


def test_tools_are_offered_with_their_parameters() -> None:
    offered = {each["function"]["name"]: each["function"]["parameters"] for each in schemas()}
    assert tuple(offered) == NAMES
    assert offered["edit"]["required"] == ["path", "old", "new"]
    assert offered["read"]["required"] == ["path"]
    assert offered["read"]["properties"]["lines"]["type"] == "integer"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "function": JSON
        | st.fixed_dictionaries(
            {"name": st.sampled_from(NAMES) | JSON, "arguments": JSON | st.builds(json.dumps, JSON)}
        ),
    },
)


@given(JSON | CALLS)
def test_any_call_is_an_action_with_every_argument_or_a_reason(call: Any) -> None:
    match parse(call):
        case Action(tool=tool, arguments=arguments):
            properties = next(each for each in schemas() if each["function"]["name"] == tool)["function"]["parameters"]
            assert set(arguments) == set(properties["properties"])
        case Malformed(reason=reason):
            assert reason


@given(
    st.lists(st.fixed_dictionaries({}, optional={"content": JSON, "tool_calls": JSON | st.lists(CALLS)}), max_size=5)
)
def test_any_messages_are_turns_and_each_call_has_one_result(messages: list[dict[str, Any]]) -> None:
    playing = harness()
    for message in messages:
        for action in playing.act(message):
            playing.answered(action, "fine")
    assert playing.turns == len(messages)
    context = playing.messages
    called = sum(len(each.get("tool_calls", [])) for each in context if each["role"] == "assistant")
    assert len(results_in(context)) == called == playing.calls
