"""From render to generate."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.agents.gateway.generate_request import (
    DEFAULT_MAX_TOKENS,
    NotRendered,
    generate_request,
    max_tokens_for,
    parse_rendered,
)

RENDERED = {
    "request_id": "chatcmpl-1",
    "token_ids": [5, 6, 7],
    "token_offsets": None,
    "features": None,
    "content_parts": None,
    "sampling_params": {"n": 2, "temperature": 0.7, "max_tokens": 20, "stop": ["###"], "stop_token_ids": [9]},
    "model": "policy",
    "reasoning_ended": False,
    "reasoning_parser_kwargs": {"chat_template_kwargs": {"enable_thinking": True}},
    "stream": False,
    "stream_options": None,
    "cache_salt": None,
    "priority": 0,
}


def rendered(**changes: Any) -> bytes:
    return json.dumps(RENDERED | changes).encode()


def test_an_answer_of_render_is_read() -> None:
    (request,) = parse_rendered(rendered())
    assert request.token_ids == array("i", [5, 6, 7])
    assert (request.choices, request.max_tokens, request.stop, request.stop_token_ids) == (2, 20, ("###",), (9,))
    assert (request.sampling.temperature, request.top_logprobs) == (0.7, None)
    assert (request.reasoning_ended, request.chat_template_kwargs) == (False, {"enable_thinking": True})


def test_completions_may_have_several_prompts() -> None:
    both = parse_rendered(b"[" + rendered() + b"," + rendered(token_ids=[8]) + b"]")
    assert [list(each.token_ids) for each in both] == [[5, 6, 7], [8]]


def test_the_request_has_the_exact_prompt_and_all_parameters() -> None:
    (request,) = parse_rendered(rendered())
    generate = generate_request(request, array("i", [1, 2]), max_tokens=12, cache_salt="tenant")
    assert json.loads(generate.body) == {
        "content_parts": None,
        "features": None,
        "model": "policy",
        "reasoning_ended": False,
        "reasoning_parser_kwargs": {"chat_template_kwargs": {"enable_thinking": True}},
        "cache_salt": "tenant",
        "priority": 0,
        "token_ids": [1, 2],
        "sampling_params": RENDERED["sampling_params"] | {"max_tokens": 12, "logprobs": 0, "detokenize": True},
        "output_mode": "text",
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert (generate.choices, generate.max_tokens, generate.with_alternatives) == (2, 12, False)


def test_alternatives_are_asked_for_as_the_client_did() -> None:
    (request,) = parse_rendered(rendered(sampling_params={"logprobs": 5}))
    generate = generate_request(request, request.token_ids)
    # Render leaves out vLLM's default limit.
    assert json.loads(generate.body)["sampling_params"] == {"logprobs": 5, "detokenize": True, "max_tokens": 16}
    assert (generate.with_alternatives, generate.max_tokens) == (True, 16)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"7",
        b"[7]",
        rendered(token_ids=[]),
        rendered(token_ids="abc"),
        rendered(sampling_params=None),
        rendered(sampling_params={"n": 0}),
        rendered(sampling_params={"n": 10**9}),
        rendered(sampling_params={"n": "two"}),
        rendered(sampling_params={"max_tokens": "many"}),
        rendered(sampling_params={"stop": [7]}),
        rendered(sampling_params={"stop_token_ids": 7}),
        rendered(sampling_params={"logprobs": [1]}),
        rendered(reasoning_ended="no"),
        rendered(reasoning_parser_kwargs=[1]),
        rendered(reasoning_parser_kwargs={"chat_template_kwargs": 7}),
        rendered(features={"mm_hashes": {}}),
        rendered(content_parts=[{"type": "image_url"}]),
    ],
)
def test_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(NotRendered):
        parse_rendered(body)


_LIMITS = st.none() | st.integers(1, 200)


@example(shown=50, exact=10, asked=60, default=None, engines=None)
@given(shown=st.integers(1, 90), exact=st.integers(1, 99), asked=_LIMITS, default=_LIMITS, engines=_LIMITS)
def test_the_limit_is_what_vllm_resolves_for_the_exact_prompt(
    shown: int, exact: int, asked: int | None, default: int | None, engines: int | None
) -> None:
    """``default`` holds for requests without a limit, ``engines`` for all."""
    context = 100
    wishes = [each for each in (default if asked is None else asked, engines) if each is not None]
    limit = min(context - shown, *wishes) if wishes else context - shown
    params = {} if limit == DEFAULT_MAX_TOKENS else {"max_tokens": limit}
    (request,) = parse_rendered(rendered(token_ids=[1] * shown, sampling_params=params))
    found = max_tokens_for(request, exact, context, asked)
    assert found <= context - exact
    assert asked is None or found <= asked
    if limit < context - shown or not wishes:
        assert found == min(context - exact, *wishes, context)
