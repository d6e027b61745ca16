"""Contexts that grow and are rewritten, recorded as differences from which they can be rebuilt exactly."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.conversation import Context, Conversation
from headrace.agents.encoding import Note
from headrace.agents.policy import Completion, PolicyClient, PolicyError
from headrace.agents.sdk import Headrace
from headrace.schemas.events import ModelCalled, Sampling, VersionSpan
from headrace.schemas.tokens import prefix_hash


class Scripted:
    """A policy that answers with the next of ``turns`` and keeps the requests."""

    model = "scripted"

    def __init__(self, *turns: list[int] | Exception) -> None:
        self.turns = list(turns)
        self.contexts: list[list[int]] = []

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        self.contexts.append(list(token_ids))
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        spans = (VersionSpan(version=1, start=0, end=len(turn)),)
        return Completion(array("i", turn), array("f", [-0.5] * len(turn)), spans, "stop", 0.1)


@pytest.fixture
def headrace() -> Iterator[Headrace]:
    sdk = Headrace("127.0.0.1:9", source="test", flush_deadline_s=0)
    yield sdk
    sdk.close()


@pytest.fixture
def notes(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> list[Note]:
    seen: list[Note] = []
    monkeypatch.setattr(headrace._sender, "put", lambda fields: seen.append(Note(*fields)))
    return seen


def calls(notes: list[Note]) -> list[ModelCalled]:
    return [ModelCalled.model_validate(note.fields) for note in notes if note.model is ModelCalled]


async def test_each_event_contains_only_the_new_tokens(headrace: Headrace, notes: list[Note]) -> None:
    policy = Scripted([10, 11], [12])
    conversation = Conversation(policy, headrace.trajectory(task_id="q", agent="a"))
    conversation.append([1, 2, 3])
    await conversation.sample(Sampling(max_tokens=4))
    conversation.append([4, 5])
    await conversation.sample(Sampling())
    first, second = calls(notes)
    assert (first.prefix_length, first.prefix_sha256, first.context_ids) == (0, None, array("i", [1, 2, 3]))
    assert (second.prefix_length, second.context_ids) == (5, array("i", [4, 5]))
    assert second.prefix_sha256 == prefix_hash(array("i", [1, 2, 3, 10, 11]))
    assert policy.contexts == [[1, 2, 3], [1, 2, 3, 10, 11, 4, 5]]
    assert conversation.ids == array("i", [1, 2, 3, 10, 11, 4, 5, 12])
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (3, 2)
    assert (first.model, first.sampling.max_tokens, first.version_spans[0].version) == ("scripted", 4, 1)


async def test_a_rewritten_context_is_recorded_completely(headrace: Headrace, notes: list[Note]) -> None:
    conversation = Conversation(Scripted([10], [11], [12]), headrace.trajectory(task_id="q", agent="a"))
    conversation.append([1, 2])
    await conversation.sample(Sampling())
    conversation.rewrite([1, 9])
    await conversation.sample(Sampling())
    await conversation.sample(Sampling())
    _, rewritten, after = calls(notes)
    assert (rewritten.prefix_length, rewritten.context_ids) == (0, array("i", [1, 9]))
    assert (after.prefix_length, after.context_ids) == (3, array("i"))


async def test_a_failed_call_emits_no_event_and_keeps_the_context(headrace: Headrace, notes: list[Note]) -> None:
    conversation = Conversation(Scripted(PolicyError("gone"), [10]), headrace.trajectory(task_id="q", agent="a"))
    conversation.append([1, 2])
    with pytest.raises(PolicyError):
        await conversation.sample(Sampling())
    assert (calls(notes), conversation.ids) == ([], array("i", [1, 2]))
    await conversation.sample(Sampling())
    assert calls(notes)[0].context_ids == array("i", [1, 2])


steps = st.lists(
    st.tuples(st.sampled_from(["append", "answer", "rewrite"]), st.lists(st.integers(0, 2**31 - 1), max_size=6)),
    max_size=20,
)


@given(steps)
def test_the_recorded_context_equals_the_policy_s(history: list[tuple[str, list[int]]]) -> None:
    context, logged = Context(), array("i")
    for step, ids in history:
        if step == "append":
            context.append(ids)
        elif step == "rewrite":
            context.rewrite(ids)
        else:
            told = context.extension()
            if told.prefix_length:
                assert told.prefix_length == len(logged)
                assert told.prefix_sha256 == prefix_hash(logged)
            logged = (logged if told.prefix_length else array("i")) + told.context_ids
            assert logged == context.ids
            context.answered(array("i", ids))
            logged += array("i", ids)
            assert logged == context.ids


@pytest.mark.vllm
async def test_a_conversation_with_the_real_engine_keeps_its_exact_tokens(
    vllm: Any, headrace: Headrace, notes: list[Note]
) -> None:
    async with PolicyClient(vllm.url) as policy:
        conversation = Conversation(policy, headrace.trajectory(task_id="q", agent="a"))
        for turn in range(3):
            conversation.append([1, 5 + turn])
            await conversation.sample(Sampling(max_tokens=6, seed=turn), stop_token_ids=[2])
    logged = array("i")
    for call in calls(notes):
        assert (call.prefix_length, call.prefix_sha256) == (len(logged), prefix_hash(logged) if logged else None)
        assert call.context_ids is not None
        assert call.sampled_ids is not None
        logged += call.context_ids + call.sampled_ids
    assert logged == conversation.ids
