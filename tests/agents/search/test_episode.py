"""A live attempt records every call, error, prune and end, and passes the policy exactly what the harness shows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.agents.search import vocabulary as words
from headrace.agents.search.episode import run_episode
from headrace.agents.search.harness import Done, Harness, Limits
from headrace.agents.search.tasks import Split, make_task, task_id
from headrace.schemas.events import EndStatus, Sampling, ToolErrorClass

TASK = next(task for number in range(60) if len((task := make_task(task_id(Split.TRAIN, number))).chain) == 2)


def query(hop: int) -> str:
    fact = TASK.chain[hop].triple
    return f"search_corpus {fact.subject} {fact.relation} <end>"


@dataclass
class ScriptedPolicy:
    """Samples given turns and keeps the context like a conversation."""

    lines: list[str]
    context: list[int] = field(default_factory=list)
    contexts: list[tuple[int, ...]] = field(default_factory=list)
    """The whole context at each call."""
    samplings: list[Sampling] = field(default_factory=list)

    def append(self, token_ids: Sequence[int]) -> None:
        self.context += token_ids

    def rewrite(self, token_ids: Sequence[int]) -> None:
        self.context = list(token_ids)

    async def sample(self, sampling: Sampling, *, stop_token_ids: Sequence[int]) -> SimpleNamespace:
        assert list(stop_token_ids) == [words.END_ID]
        self.contexts.append(tuple(self.context))
        self.samplings.append(sampling)
        token_ids = words.encode(self.lines.pop(0))
        self.context += token_ids
        return SimpleNamespace(token_ids=token_ids)


class Notes:
    """Replaces the SDK's trajectory."""

    def __init__(self) -> None:
        self.calls: list[SimpleNamespace] = []
        self.prunes: list[tuple[Sequence[str], int, int]] = []
        self.ended: tuple[EndStatus, Any] | None = None

    def tool(self, name: str, arguments: dict[str, Any]) -> Any:
        notes = self

        class Call(SimpleNamespace):
            def __enter__(self) -> "Call":
                notes.calls.append(self)
                return self

            def __exit__(self, *_: object) -> None: ...

            def error(self, error_class: ToolErrorClass, result: Any = None) -> None:
                self.error_class, self.result = error_class, result

        return Call(tool=name, arguments=arguments, result=None, error_class=None)

    def pruned(self, ids: Sequence[str], before: int, after: int) -> None:
        self.prunes.append((ids, before, after))

    def end(self, status: EndStatus, answer: Any) -> None:
        self.ended = (status, answer)


async def attempt(*lines: str, limits: Limits | None = None) -> tuple[ScriptedPolicy, Notes, Done]:
    policy, notes = ScriptedPolicy(list(lines)), Notes()
    done = await run_episode(policy, TASK, notes, limits=limits)  # type: ignore[arg-type]
    return policy, notes, done


async def test_a_good_attempt_records_its_searches_and_its_answer() -> None:
    _, notes, done = await attempt(query(0), query(1), f"answer {' '.join(TASK.targets)} <end>")
    assert [call.tool for call in notes.calls] == ["search_corpus", "search_corpus"]
    assert TASK.targets[0] in notes.calls[0].result["chunk_ids"]
    assert notes.ended == (EndStatus.COMPLETED, {"chunk_ids": list(TASK.targets)}) == (done.status, done.answer)


async def test_the_policy_sees_what_the_harness_shows() -> None:
    policy, _, _ = await attempt(query(0), query(1), "answer <end>")
    harness = Harness(TASK)
    for line, context in zip((query(0), query(1), "answer <end>"), policy.contexts, strict=True):
        assert context == harness.observe()
        harness.act(words.encode(line))


async def test_a_prune_is_recorded_and_rewrites_the_policys_context() -> None:
    first = Harness(TASK)
    first.act(words.encode(query(0)))
    gone = next(chunk.chunk_id for chunk in first.view if chunk.chunk_id not in TASK.targets)
    policy, notes, _ = await attempt(query(0), f"prune_chunks {gone} <end>", "answer <end>")
    [(pruned, before, after)] = notes.prunes
    assert tuple(pruned) == (gone,)
    assert after == len(policy.contexts[-1]) < before
    assert words.TOKEN_IDS[gone] not in policy.contexts[-1]


async def test_an_error_is_recorded_with_its_class() -> None:
    _, notes, _ = await attempt("found found <end>", "answer <end>")
    [call] = notes.calls
    assert (call.tool, call.error_class) == ("unknown", ToolErrorClass.INVALID_ARGUMENTS)


async def test_the_call_that_exhausts_the_turns_is_recorded_too() -> None:
    _, notes, _ = await attempt(query(0), limits=Limits(turns=1))
    assert [call.tool for call in notes.calls] == ["search_corpus"]
    assert notes.ended == (EndStatus.TURNS_EXHAUSTED, None)


async def test_a_turn_may_not_be_longer_than_the_limit() -> None:
    policy, _, _ = await attempt("answer <end>", limits=Limits(sampled_tokens=7))
    assert policy.samplings[0].max_tokens == 7
    assert not policy.samplings[0].truncates


async def test_an_error_of_the_engine_propagates() -> None:
    class Broken(ScriptedPolicy):
        async def sample(self, sampling: Sampling, *, stop_token_ids: Sequence[int]) -> SimpleNamespace:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await run_episode(Broken([]), TASK, Notes())  # type: ignore[arg-type]
