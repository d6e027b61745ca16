"""What the demo counts of a program's calls: each kind of difference is seen."""

from typing import Any

import pytest

from headrace.agents.search import vocabulary as words
from headrace.deploy.demo.exactness import CallsCount, Exactness, echoes_in
from headrace.schemas.events import ModelCalled, TrajectoryEnded
from headrace.schemas.tokens import prefix_hash

QUESTION, ACTION, RESULT = "what is ada ?", "grep_corpus ada", "nothing found"
FIRST = words.encode(f"<task> {QUESTION} <agent>")
SAMPLED = words.encode(f"{ACTION} <end>")
NEXT = words.encode(f"<result> {RESULT} <agent>")
ASKED = [{"role": "user", "content": QUESTION}]
SAID = {"role": "assistant", "content": ACTION}
TOLD = {"role": "user", "content": RESULT}


def called(context: list[int], messages: list[dict[str, Any]], prefix: list[int] | None = None, **fields: Any) -> Any:
    known = {} if prefix is None else {"prefix_length": len(prefix), "prefix_sha256": prefix_hash(ids(prefix))}
    values = {"model": "policy", "context_ids": context, "sampled_ids": SAMPLED, "finish_reason": "stop"}
    return ModelCalled.model_validate({**values, "messages": messages, **known, **fields})


def ids(tokens: list[int]) -> Any:
    return called(tokens, ASKED).context_ids


def counted(*facts: Any) -> Exactness:
    count = CallsCount(words.encode, words.END_ID)
    for fact in facts:
        count.add("t", fact)
    return count.exactness({})


EXACT = (called(FIRST, [*ASKED, SAID]), called(NEXT, [TOLD, SAID], FIRST + SAMPLED))


def test_a_call_that_continues_with_the_sampled_tokens_is_exact() -> None:
    found = counted(*EXACT)
    assert (found.calls, found.continuing, found.retokenised, found.unknown_prefixes, found.text_differs) == (
        2,
        1,
        0,
        0,
        0,
    )


def test_a_conversation_that_was_tokenised_again_is_a_difference() -> None:
    other = [*FIRST, *words.encode("grep_corpus ada ada <end>"), *NEXT]
    found = counted(EXACT[0], called(other, [*ASKED, SAID, TOLD, SAID]))
    assert (found.continuing, found.retokenised) == (1, 1)
    same = counted(EXACT[0], called([*FIRST, *SAMPLED, *NEXT], [*ASKED, SAID, TOLD, SAID]))
    assert (same.continuing, same.retokenised) == (1, 0)


def test_a_context_that_the_program_has_rewritten_continues_nothing() -> None:
    found = counted(EXACT[0], called(NEXT, [{"role": "user", "content": "what is ada"}, SAID]))
    assert (found.calls, found.continuing, found.retokenised) == (2, 0, 0)


def test_a_prefix_that_no_call_ended_with_is_counted() -> None:
    found = counted(EXACT[0], called(NEXT, [TOLD, SAID], [*FIRST, *SAMPLED[1:]]))
    assert (found.continuing, found.unknown_prefixes) == (0, 1)
    after_its_end = counted(EXACT[0], TrajectoryEnded(), EXACT[1])
    assert (after_its_end.continuing, after_its_end.unknown_prefixes) == (0, 1)


@pytest.mark.parametrize(
    ("sampled", "text", "finish", "differs"),
    [
        ("grep_corpus ada <end>", " grep_corpus ada", "stop", 0),
        ("grep_corpus ada", "grep_corpus ada", "length", 0),
        ("<end>", None, "stop", 0),
        ("grep_corpus <task> ada <end>", "grep_corpus ada", "stop", 1),
        ("grep_corpus ada <end>", "grep_corpus Ada", "stop", 1),
    ],
)
def test_a_text_with_other_tokens_than_were_sampled_is_counted(
    sampled: str, text: str | None, finish: str, differs: int
) -> None:
    said = [*ASKED, {"role": "assistant", "content": text}]
    call = called(FIRST, said, sampled_ids=words.encode(sampled), finish_reason=finish)
    assert counted(call).text_differs == differs


def test_a_call_without_tokens_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match="without tokens"):
        counted(called(FIRST, ASKED, context_ids=None, sampled_ids=None))


def test_the_gateways_counts_are_read_from_its_metrics() -> None:
    page = """
# HELP headrace_gateway_echoes_total Answers.
# TYPE headrace_gateway_echoes_total counter
headrace_gateway_echoes_total{echo="equal",otel_scope_name="headrace.gateway"} 41.0
headrace_gateway_echoes_total{echo="missing",otel_scope_name="headrace.gateway"} 1.0
# TYPE headrace_gateway_calls_total counter
headrace_gateway_calls_total{api="chat"} 7.0
"""
    assert echoes_in(page.splitlines()) == {"equal": 41, "missing": 1}
