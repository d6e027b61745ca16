"""The four APIs: what clients change between requests disappears, what cannot be recorded is refused by name."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.agents.gateway.canonical import (
    MAX_CALLS,
    MAX_MESSAGES,
    Api,
    BadRequest,
    CanonicalRequest,
    Message,
    MessageRole,
    Unsupported,
)
from headrace.agents.gateway.requests.messages import BILLING_PREFIX
from headrace.agents.gateway.requests.read import read


def chat(*messages: Any, **fields: Any) -> CanonicalRequest:
    return read(Api.CHAT, {"model": "m", "messages": list(messages)} | fields)


def responses(*items: Any, **fields: Any) -> CanonicalRequest:
    return read(Api.RESPONSES, {"model": "m", "input": list(items), **fields})


def anthropic(*messages: Any, **fields: Any) -> CanonicalRequest:
    return read(Api.MESSAGES, {"model": "m", "max_tokens": 9, "messages": list(messages), **fields})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "hi", **fields}


def block(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def call(arguments: Any = '{"a":1,"b":2}', **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}, **fields}


def digests(request: CanonicalRequest) -> list[bytes]:
    return [message.digest for message in request.messages]


NOISE: dict[str, tuple[Callable[[], CanonicalRequest], Callable[[], CanonicalRequest]]] = {
    "a block instead of a string": (lambda: chat(user("x")), lambda: chat(user([block("x")]))),
    "cache_control in a block": (
        lambda: anthropic(user([block("x")])),
        lambda: anthropic(user([block("x", cache_control={"type": "ephemeral"})])),
    ),
    "a system block instead of a string": (
        lambda: anthropic(user("x"), system="s"),
        lambda: anthropic(user("x"), system=[block("s", cache_control={"type": "ephemeral", "ttl": "1h"})]),
    ),
    "provider_specific_fields": (
        lambda: chat(user("x"), answer()),
        lambda: chat(user("x"), answer(provider_specific_fields={"refusal": None}, annotations=[], refusal=None)),
    ),
    "null and empty content": (
        lambda: chat(user("x"), answer(content=None, tool_calls=[call()])),
        lambda: chat(user("x"), answer(content="", tool_calls=[call()])),
    ),
    "the order of argument keys": (
        lambda: chat(user("x"), answer(tool_calls=[call()])),
        lambda: chat(user("x"), answer(tool_calls=[call('{ "b": 2, "a": 1.0 }')])),
    ),
    "an index in a call": (
        lambda: chat(user("x"), answer(tool_calls=[call()])),
        lambda: chat(user("x"), answer(tool_calls=[call(index=0)])),
    ),
    "other call ids": (
        lambda: chat(user("x"), answer(tool_calls=[call()]), {"role": "tool", "tool_call_id": "c1", "content": "r"}),
        lambda: chat(
            user("x"),
            answer(tool_calls=[call(id="zz")]),
            {"role": "tool", "tool_call_id": "zz", "content": [block("r")], "name": "bash"},
        ),
    ),
    "developer instead of system": (
        lambda: chat({"role": "system", "content": "s"}),
        lambda: chat({"role": "developer", "content": "s"}),
    ),
    "reasoning left out": (
        lambda: chat(user("x"), answer()),
        lambda: chat(user("x"), answer(reasoning_content="hm", reasoning_details=[{"type": "x"}])),
    ),
    "a signature": (
        lambda: anthropic(user("x"), answer(content=[{"type": "thinking", "thinking": "t", "signature": "a"}])),
        lambda: anthropic(user("x"), answer(content=[{"type": "thinking", "thinking": "t", "signature": "b"}])),
    ),
    "an item's id and status": (
        lambda: responses({"role": "user", "content": "x"}),
        lambda: responses(
            {"type": "message", "role": "user", "id": "m1", "content": [{"type": "input_text", "text": "x"}]}
        ),
    ),
    "the billing line as a block": (
        lambda: anthropic(user("x"), system=[block(f"{BILLING_PREFIX} cc_version=1; cch=aaa;"), block("s")]),
        lambda: anthropic(user("x"), system=[block(f"{BILLING_PREFIX} cc_version=1; cch=bbb;"), block("s")]),
    ),
    "the billing line in a string": (
        lambda: anthropic(user("x"), system=f"{BILLING_PREFIX} cch=aaa;\n\ns"),
        lambda: anthropic(user("x"), system="s"),
    ),
    "a system prompt of the billing line only": (
        lambda: anthropic(user("x"), system=f"{BILLING_PREFIX} cch=aaa;"),
        lambda: anthropic(user("x")),
    ),
}


@pytest.mark.parametrize("name", NOISE)
def test_noise_has_no_influence(name: str) -> None:
    left, right = (each() for each in NOISE[name])
    assert digests(left) == digests(right)
    assert (left.tools, left.template_kwargs) == (right.tools, right.template_kwargs)


DIFFERENT: dict[str, tuple[Callable[[], CanonicalRequest], Callable[[], CanonicalRequest]]] = {
    "two blocks and one": (lambda: chat(user([block("a"), block("b")])), lambda: chat(user("ab"))),
    "roles": (lambda: chat(user("x")), lambda: chat({"role": "system", "content": "x"})),
    "arguments": (
        lambda: chat(user("x"), answer(tool_calls=[call('{"a":1}')])),
        lambda: chat(user("x"), answer(tool_calls=[call('{"a":"1"}')])),
    ),
    "which call is answered": (
        lambda: chat(
            answer(tool_calls=[call(), call(id="c2")]), {"role": "tool", "tool_call_id": "c1", "content": "r"}
        ),
        lambda: chat(
            answer(tool_calls=[call(), call(id="c2")]), {"role": "tool", "tool_call_id": "c2", "content": "r"}
        ),
    ),
    "an error": (
        lambda: anthropic(user([{"type": "tool_result", "tool_use_id": "c", "content": "r"}])),
        lambda: anthropic(user([{"type": "tool_result", "tool_use_id": "c", "content": "r", "is_error": True}])),
    ),
    "white space": (lambda: chat(user("x")), lambda: chat(user("x "))),
    "a billing line of the user": (
        lambda: anthropic(user(f"{BILLING_PREFIX} 1")),
        lambda: anthropic(user(f"{BILLING_PREFIX} 2")),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_matters(name: str) -> None:
    left, right = (each() for each in DIFFERENT[name])
    assert digests(left) != digests(right)


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "image": (lambda: chat(user([block("x"), IMAGE])), "messages[0].content[1]"),
    "audio": (lambda: chat(user([{"type": "input_audio", "input_audio": {}}])), "messages[0].content[0]"),
    "file": (lambda: chat(user([{"type": "file", "file": {}}])), "messages[0].content[0]"),
    "audio of an answer": (lambda: chat(user("x"), answer(audio={"id": "a"})), "messages[1].audio"),
    "functions": (lambda: chat(user("x"), functions=[{}]), "functions"),
    "function_call": (lambda: chat(answer(function_call={"name": "f"})), "messages[0].function_call"),
    "anthropic image": (lambda: anthropic(user([{"type": "image", "source": {}}])), "messages[0].content[0]"),
    "document": (lambda: anthropic(user([{"type": "document", "source": {}}])), "messages[0].content[0]"),
    "image in a result": (
        lambda: anthropic(user([{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}])),
        "messages[0].content[0].content[0]",
    ),
    "server tool": (
        lambda: anthropic(answer(content=[{"type": "server_tool_use", "id": "s", "name": "w"}])),
        "messages[0].content[0]",
    ),
    "tool of Anthropic": (
        lambda: anthropic(
            user("x"),
            tools=[{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}],
        ),
        "tools[1]",
    ),
    "input_image": (lambda: responses(user([{"type": "input_image"}])), "input[0].content[0]"),
    "item_reference": (lambda: responses({"type": "item_reference", "id": "x"}), "input[0]"),
    "computer call": (lambda: responses({"type": "computer_call"}), "input[0]"),
    "conversation": (lambda: responses(user("x"), conversation="c"), "conversation"),
    "several prompts": (lambda: read(Api.COMPLETIONS, {"model": "m", "prompt": ["a", "b"]}), "prompt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_refused_by_name(name: str) -> None:
    attempt, field = REFUSED[name]
    with pytest.raises(Unsupported) as error:
        attempt()
    assert error.value.field == field
    assert str(error.value).startswith(f"{field}: ")


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no object": (lambda: read(Api.CHAT, [1]), "body"),
    "no model": (lambda: read(Api.CHAT, {"messages": [user("x")]}), "model"),
    "a long model": (lambda: read(Api.CHAT, {"model": "m" * 600, "messages": [user("x")]}), "model"),
    "no messages": (lambda: chat(), "messages"),
    "messages of another type": (lambda: read(Api.CHAT, {"model": "m", "messages": "x"}), "messages"),
    "too many messages": (lambda: chat(*[user("x")] * (MAX_MESSAGES + 1)), "messages"),
    "a message of another type": (lambda: chat("x"), "messages[0]"),
    "no role": (lambda: chat({"content": "x"}), "messages[0].role"),
    "a role of another type": (lambda: chat({"role": ["user"], "content": "x"}), "messages[0].role"),
    "content of another type": (lambda: chat(user(7)), "messages[0].content"),
    "a text of another type": (lambda: chat(user([block(7)])), "messages[0].content[0].text"),  # type: ignore[arg-type]
    "a result without its call": (lambda: chat({"role": "tool", "content": "x"}), "messages[0].tool_call_id"),
    "a call without a name": (
        lambda: chat(answer(tool_calls=[{"id": "c", "function": {}}])),
        "messages[0].tool_calls[0].function.name",
    ),
    "too many calls": (
        lambda: anthropic(
            answer(content=[{"type": "tool_use", "id": f"c{n}", "name": "t"} for n in range(MAX_CALLS + 1)])
        ),
        "messages[0]",
    ),
    "half of a surrogate pair": (lambda: chat(user("x"), user("\ud83d")), "messages[1]"),
    "half of a pair in arguments": (lambda: chat(answer(tool_calls=[call("\ud83d")])), "messages[0]"),
    "a name that is not printable": (lambda: chat(user("x"), model="\ud83d"), "model"),
    "n": (lambda: chat(user("x"), n=0), "n"),
    "n as a bool": (lambda: chat(user("x"), n=True), "n"),
    "tools": (lambda: chat(user("x"), tools={}), "tools"),
    "a huge token id": (lambda: read(Api.COMPLETIONS, {"model": "m", "prompt": [2**31]}), "prompt"),
    "anthropic role": (lambda: anthropic({"role": "tool", "content": "x"}), "messages[0].role"),
    "thinking": (lambda: anthropic(user("x"), thinking="yes"), "thinking"),
    "a compaction without content": (lambda: responses({"type": "compaction"}), "input[0].encrypted_content"),
    "an empty reference": (lambda: responses(user("x"), previous_response_id=""), "previous_response_id"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_field_is_named(name: str) -> None:
    attempt, field = BAD[name]
    with pytest.raises(BadRequest) as error:
        attempt()
    assert error.value.field == field


def test_a_conversation_longer_than_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.agents.gateway.requests.blocks.MAX_CHARACTERS", 100)
    assert len(chat(user("x" * 60), user("y" * 40)).messages) == 2
    with pytest.raises(BadRequest, match="100 characters"):
        chat(user("x" * 60), user("y" * 41))


def test_one_turn_is_the_same_in_three_apis() -> None:
    on_chat = chat(
        {"role": "system", "content": "s"},
        user("x"),
        answer(reasoning="hm", tool_calls=[call()]),
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    )
    on_messages = anthropic(
        user("x"),
        answer(
            content=[
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                block("hi"),
                {"type": "tool_use", "id": "c1", "name": "bash", "input": {"b": 2, "a": 1}},
            ]
        ),
        user([{"type": "tool_result", "tool_use_id": "c1", "content": [block("r")]}]),
        system="s",
    )
    on_responses = responses(
        user("x"),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"a":1,"b":2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
        instructions="s",
    )
    assert digests(on_chat) == digests(on_messages) == digests(on_responses)
    assert [request.messages[2].reasoning for request in (on_chat, on_messages, on_responses)] == ["hm"] * 3


def test_items_of_one_answer_are_merged_and_those_of_two_are_not() -> None:
    function_call = {"type": "function_call", "call_id": "c1", "name": "t", "arguments": "{}"}
    request = responses(
        user("x"),
        function_call,
        function_call | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c2", "output": "r2"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "r1"}]},
        function_call | {"call_id": "c3"},
    )
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [message.answers for message in request.messages[2:4]] == [1, 0]


def test_results_and_texts_of_a_user_are_messages_in_order() -> None:
    request = anthropic(
        answer(content=[{"type": "tool_use", "id": "c", "name": "t", "input": {}}]),
        user(
            [
                block("before"),
                {"type": "tool_result", "tool_use_id": "c", "content": "r"},
                block("a"),
                block("b"),
            ]
        ),
    )
    assert [(message.role, message.texts) for message in request.messages[1:]] == [
        (MessageRole.USER, ("before",)),
        (MessageRole.TOOL, ("r",)),
        (MessageRole.USER, ("a", "b")),
    ]


def test_ids_that_may_be_minted_are_kept_beside_the_digest() -> None:
    thinking = {"type": "redacted_thinking", "data": "enc_1"}
    assert anthropic(answer(content=[thinking, block("x")])).messages[0].echoed == ("enc_1",)
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "enc_2"}
    message = responses(reasoning, answer()).messages[0]
    assert (message.echoed, message.reasoning, message.text) == (("enc_2",), "s", "hi")


def test_custom_tools_have_text_arguments() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": '{"a": 1}'}}
    on_chat = chat(user("x"), answer(content=None, tool_calls=[custom])).messages[1]
    assert (on_chat.calls[0].is_json, on_chat.calls[0].value) == (False, {"raw": '{"a": 1}'})


def test_tools_of_responses_are_compared_as_the_model_calls_them() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": '{"a": 1}'}
    spaced = {"type": "function_call", "call_id": "c2", "name": "search", "namespace": "mcp", "arguments": "{}"}
    as_functions = [
        {"type": "function_call", "call_id": "c1", "name": "patch", "arguments": json.dumps({"input": '{"a": 1}'})},
        {"type": "function_call", "call_id": "c2", "name": "mcp__search", "arguments": "{}"},
    ]
    message = responses(user("x"), custom, spaced).messages[1]
    assert message.digest == responses(user("x"), *as_functions).messages[1].digest
    assert [(call.tool, call.value) for call in message.calls] == [
        ("patch", {"input": '{"a": 1}'}),
        ("mcp__search", {}),
    ]
    with pytest.raises(BadRequest, match=r"input\[1\].namespace"):
        responses(user("x"), {**spaced, "namespace": 7})


def test_the_tools_that_a_request_offers_are_named_as_the_model_sees_them() -> None:
    function = {"type": "function", "function": {"name": "read"}}
    assert chat(user("x"), tools=[function, {"type": "function", "function": {"name": "grep"}}]).tools_offered == (
        "grep,read"
    )
    assert chat(user("x")).tools_offered == chat(user("x"), tools=[{}, {"name": 7}]).tools_offered == ""
    spaced = {"type": "namespace", "name": "mcp", "tools": [{"name": "search"}, {"name": 7}, "odd"]}
    given = [{"type": "function", "name": "read"}, spaced, {"type": "custom", "name": "patch"}]
    assert responses(user("x"), tools=given).tools_offered == "mcp__search,patch,read"
    web = [{"type": "function", "name": "read"}, {"type": "web_search"}]
    assert responses(user("x"), tools=web).tools_offered == "read,web_search"


def test_tools_and_template_arguments_are_part_of_the_root_and_samplings_are_not() -> None:
    def shape(**fields: Any) -> tuple[bytes, str]:
        request = chat(user("x"), **fields)
        return request.tools, request.template_kwargs

    tool = {"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {}}}}
    assert shape() == shape(temperature=0.3, stream=True, tools=[], max_tokens=4)
    assert shape(tools=[tool]) != shape()
    assert shape(tools=[tool]) == shape(tools=[tool | {"cache_control": {"type": "ephemeral"}}])
    assert shape(chat_template_kwargs={"enable_thinking": False}) != shape()
    assert shape(reasoning_effort="high") != shape(reasoning_effort="low")


def test_the_thinking_budget_is_not_part_of_the_root() -> None:
    requests = [anthropic(user("x"), thinking={"type": "enabled", "budget_tokens": budget}) for budget in (1, 2)]
    assert requests[0].template_kwargs == requests[1].template_kwargs != anthropic(user("x")).template_kwargs


def test_completions_take_a_text_or_token_ids() -> None:
    text = read(Api.COMPLETIONS, {"model": "m", "prompt": "once"})
    tokens = [read(Api.COMPLETIONS, {"model": "m", "prompt": ids}) for ids in ([1, 2], [1, 3], [1, 2])]
    assert text.messages == (Message.of(MessageRole.USER, ("once",)),)
    assert text.template_kwargs != chat(user("once")).template_kwargs
    assert digests(tokens[0]) == digests(tokens[2]) != digests(tokens[1])


def test_a_plain_input_is_a_message_of_the_user() -> None:
    request = read(Api.RESPONSES, {"model": "m", "input": "x", "previous_response_id": "resp_1"})
    assert digests(request) == digests(chat(user("x")))
    assert (request.previous_response_id, request.has_instructions) == ("resp_1", False)


@pytest.mark.parametrize("kind", [[], {}, 7, None])
def test_a_type_may_be_any_json(kind: Any) -> None:
    odd = {"type": kind}
    for api, body in (
        (Api.CHAT, {"messages": [{"role": "user", "content": [odd]}]}),
        (Api.MESSAGES, {"messages": [{"role": "user", "content": [odd]}]}),
        (Api.MESSAGES, {"messages": [{"role": "assistant", "content": [odd]}]}),
        (Api.RESPONSES, {"input": [odd]}),
        (Api.RESPONSES, {"input": [{"role": "user", "content": [odd]}]}),
    ):
        with pytest.raises(BadRequest):
            read(api, {"model": "m", **body})
