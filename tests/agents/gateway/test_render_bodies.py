"""A client's request in the form that vLLM renders: whole, up to an answer, and after a dummy turn."""

import copy
from typing import Any

import pytest

from headrace.agents.gateway.canonical import Api, CanonicalRequest, Message, MessageRole, assistant, call_of
from headrace.agents.gateway.render_bodies import Conversation
from headrace.agents.gateway.requests.read import read

HANDLED = {"stream": True, "store": False, "include": ["x"], "background": False, "stream_options": {}}


def conversation(api: Api, body: dict[str, Any], history: tuple[Message, ...] = ()) -> Conversation:
    before = copy.deepcopy(body)
    request = read(api, body).with_history(history) if history else read(api, body)
    made = Conversation(api, body, request, "served")
    assert body == before
    return made


TOOLS = {
    Api.CHAT: [{"type": "function", "function": {"name": "bash", "parameters": {}}}],
    Api.MESSAGES: [{"name": "bash", "input_schema": {"type": "object"}}],
    Api.RESPONSES: [{"type": "function", "name": "bash", "parameters": {}}],
}


def choice_for(api: Api, body: dict[str, Any], *, parses_tools: bool) -> Any:
    field = "input" if api is Api.RESPONSES else "messages"
    body = {"model": "m", field: [user("hi")], "max_tokens": 9, **body}
    made = Conversation(api, body, read(api, body), "served", parses_tools=parses_tools)
    whole = made.whole()
    assert made.instead([])["tool_choice" if "tool_choice" in whole else "model"] == whole.get("tool_choice", "served")
    return whole.get("tool_choice")


@pytest.mark.parametrize(
    ("api", "none"), [(Api.CHAT, "none"), (Api.RESPONSES, "none"), (Api.MESSAGES, {"type": "none"})]
)
def test_what_stays_text_is_rendered_as_vllm_without_a_parser_takes_it(api: Api, none: Any) -> None:
    auto = {"type": "auto", "disable_parallel_tool_use": True} if api is Api.MESSAGES else "auto"
    must = {"type": "any"} if api is Api.MESSAGES else "required"
    offered = {"tools": TOOLS[api]}
    assert choice_for(api, offered, parses_tools=False) == none
    assert choice_for(api, offered | {"tool_choice": auto}, parses_tools=False) == none
    assert choice_for(api, offered | {"tool_choice": must}, parses_tools=False) == must
    assert choice_for(api, {"tools": []}, parses_tools=False) is None
    assert choice_for(api, {}, parses_tools=False) is None
    assert choice_for(api, offered, parses_tools=True) is None
    assert choice_for(api, offered | {"tool_choice": auto}, parses_tools=True) == auto


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "bash", "arguments": "{}"}


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "fine"}


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES])
def test_what_a_client_wrote_is_passed_on(api: Api) -> None:
    messages = [user("a"), answer("b"), user("c"), answer("d"), user("e")]
    body = {"model": "alias", "messages": messages, "temperature": 0.5, "odd": {"x": 1}, "n": 2, **HANDLED}
    made = conversation(api, body)
    kept = {"model": "served", "temperature": 0.5, "odd": {"x": 1}} | ({"n": 2} if api is Api.CHAT else {})
    assert made.whole() == {**kept, "messages": messages}
    assert made.until(1)["messages"] == messages[:2]
    assert made.until(2)["messages"] == messages[:4]
    first, second = made.dummy(1, ())
    assert [each["content"] for each in second["messages"][-3:]] == ["c", "d", "e"]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert made.instead([user("x")]) == {**kept, "messages": [user("x")]}


def test_a_completion_has_no_parts() -> None:
    body = {"model": "alias", "prompt": "once", "n": 3, "stream": True}
    assert conversation(Api.COMPLETIONS, body).whole() == {"model": "served", "prompt": "once", "n": 3}


def test_consecutive_items_of_the_model_are_one_answer() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    items = [user("a"), reasoning, answer("b"), call("1"), call("2"), output("1"), output("2"), answer("c"), user("d")]
    made = conversation(Api.RESPONSES, {"model": "m", "input": items})
    assert made.whole()["input"] == items
    assert made.until(1)["input"] == items[:5]
    assert made.until(2)["input"] == items[:8]
    with pytest.raises(IndexError):
        made.until(3)


def test_the_last_item_of_a_part_is_complete() -> None:
    items = [user("a"), {**answer("b"), "status": "incomplete"}, user("c")]
    made = conversation(Api.RESPONSES, {"model": "m", "input": items})
    assert made.until(1)["input"][-1]["status"] == "completed"
    assert made.whole()["input"] == items


def test_what_only_the_gateway_can_read_is_left_out() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "enc_1"}
    shown = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": "enc_1"}
    made = conversation(Api.RESPONSES, {"model": "m", "input": [user("a"), sealed, shown, answer("b"), user("c")]})
    assert [each.get("type") for each in made.whole()["input"]] == [None, "reasoning", None, None]
    assert all("encrypted_content" not in each for each in made.whole()["input"])
    assert len(made.until(1)["input"]) == 3


def recalled(*texts: str) -> tuple[Message, ...]:
    found: list[Message] = []
    for text in texts:
        found += (Message.of(MessageRole.USER, (f"ask {text}",)), assistant(text))
    return tuple(found)


def test_a_recalled_history_precedes_the_input() -> None:
    body = {"model": "m", "input": "next", "instructions": "Be brief.", "previous_response_id": "resp_1"}
    made = conversation(Api.RESPONSES, body, recalled("one", "two"))
    whole = [user("ask one"), answer("one"), user("ask two"), answer("two"), user("next")]
    assert made.whole() == {"model": "served", "instructions": "Be brief.", "input": whole}
    assert made.until(1)["input"] == whole[:2]
    assert made.until(2)["input"] == whole[:4]


def test_answers_of_a_recalled_history_may_be_empty_or_followed_by_the_clients_own() -> None:
    body = {"model": "m", "input": [answer("mine"), user("next")], "previous_response_id": "resp_1"}
    made = conversation(Api.RESPONSES, body, recalled("one", ""))
    assert made.until(2)["input"] == [user("ask one"), answer("one"), user("ask "), answer("")]
    assert made.until(3)["input"] == [*made.until(2)["input"], answer("mine")]
    assert made.whole()["input"] == [*made.until(3)["input"], user("next")]


def test_a_recalled_history_with_reasoning_and_calls() -> None:
    calls = (call_of("call_1", "bash", '{"b": 1,  "a": 2}', "x"), call_of("call_2", "bash", {"a": 1}, "x"))
    history = (
        Message.of(MessageRole.SYSTEM, ("sys",)),
        Message.of(MessageRole.USER, ("a", "b")),
        assistant("look", calls, "hm"),
        Message.of(MessageRole.TOOL, ("one",), answers=0),
        Message.of(MessageRole.TOOL, ("two",), answers="call_x"),
        assistant("", (), "only thought"),
    )
    made = conversation(Api.RESPONSES, {"model": "m", "input": "next", "previous_response_id": "r"}, history)
    items = made.whole()["input"]
    assert [each.get("type", each.get("role")) for each in items] == [
        "system", "user", "reasoning", "assistant", "function_call", "function_call",
        "function_call_output", "function_call_output", "reasoning", "assistant", "user",
    ]  # fmt: skip
    assert items[1]["content"] == "a\nb"
    assert [each["arguments"] for each in items[4:6]] == ['{"b": 1,  "a": 2}', '{"a":1}']
    assert [each["call_id"] for each in items[4:8]] == ["call_1", "call_2", "call_1", "call_x"]
    assert made.until(1)["input"] == items[:6]
    assert made.until(2)["input"] == items[:10]


def test_summaries_are_filled_in() -> None:
    sealed = {"type": "compaction", "encrypted_content": "enc_1"}
    body = {"model": "m", "input": [user("a"), sealed, user("b"), {**sealed, "encrypted_content": "enc_2"}]}
    request = read(Api.RESPONSES, body)
    texts = iter(("first summary", "second summary"))
    messages = tuple(
        Message(each.role, (next(texts),), echoed=each.echoed) if each.role is MessageRole.SUMMARY else each
        for each in request.messages
    )
    filled = CanonicalRequest(Api.RESPONSES, request.model, messages)
    items = Conversation(Api.RESPONSES, body, filled, "m").whole()["input"]
    assert [each["content"] for each in items] == ["a", "first summary", "b", "second summary"]


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES, Api.RESPONSES])
def test_a_dummy_turn_has_the_calls_that_are_answered(api: Api) -> None:
    field = "input" if api is Api.RESPONSES else "messages"
    made = conversation(api, {"model": "m", field: [user("a"), answer("b"), user("c")]})
    first, second = made.dummy(1, [("call_7", "bash")])
    assert "call_7" in str(first[field])
    assert second[field] == [*first[field], user("c")]
