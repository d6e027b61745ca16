"""The search agent works as a frozen sub-agent: its tokens are in its own trajectory, and its version may not move."""

from array import array
from collections.abc import Iterator, Sequence

import pytest

from headrace.agents.encoding import Note
from headrace.agents.policy import Completion, PolicyError
from headrace.agents.sdk import Headrace
from headrace.agents.search import vocabulary as search_words
from headrace.agents.swarm.subagents import Report, SubTask
from headrace.agents.swarm.tasks import make_task
from headrace.agents.swarm.workers import FrozenPolicy, FrozenSearchWorkers
from headrace.schemas.events import EndStatus, ModelCalled, Role, Sampling, TrajectoryStarted, VersionSpan

TASK = make_task("swarm-train-000001")
FACT = TASK.evidence[0]
REAL = SubTask("alpha", ("find", FACT.triple.relation), (FACT.triple.subject,))
SEARCH = f"search_corpus {FACT.triple.subject} {FACT.triple.relation} <end>"
FROZEN_AT = 12


class Engine:
    """Serves the search agent's turns at one policy version."""

    model = "search"

    def __init__(self, *lines: str, version: int | None = FROZEN_AT) -> None:
        self.lines, self.version = list(lines), version
        self.contexts: list[str] = []
        self.temperatures: list[float | None] = []

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        self.contexts.append(search_words.decode(token_ids))
        self.temperatures.append(sampling.temperature)
        turn = search_words.encode(self.lines.pop(0))
        spans = (VersionSpan(version=self.version, start=0, end=len(turn)),)
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


async def work(headrace: Headrace, engine: Engine, subtask: SubTask = REAL, max_steps: int = 3) -> Report:
    workers = FrozenSearchWorkers(FrozenPolicy(engine, FROZEN_AT))
    with headrace.trajectory(task_id="q", agent="swarm") as t:
        async with t.subagent("alpha", task_id="q", agent=workers.agent) as own:
            return await workers.work(subtask, TASK.corpus, max_steps, own)


async def test_the_search_agent_is_asked_its_own_kind_of_question_greedily(headrace: Headrace) -> None:
    engine = Engine(SEARCH, f"answer {FACT.chunk_id} <end>")
    report = await work(headrace, engine)
    assert (report.chunk, report.status, report.steps) == (FACT, EndStatus.COMPLETED, 2)
    question = f"<task> what is the {FACT.triple.relation} of {FACT.triple.subject} ?"
    assert engine.contexts[0].startswith(question)
    assert set(engine.temperatures) == {0.0}


async def test_its_calls_with_tokens_are_in_its_own_frozen_trajectory(headrace: Headrace, notes: list[Note]) -> None:
    await work(headrace, Engine(SEARCH, f"answer {FACT.chunk_id} <end>"))
    started = [note for note in notes if note.model is TrajectoryStarted]
    [own] = [note for note in started if note.fields.get("role") is Role.FROZEN]
    calls = [note for note in notes if note.model is ModelCalled]
    assert {note.trajectory_id for note in calls} == {own.trajectory_id}
    assert list(calls[0].fields["sampled_ids"]) == search_words.encode(SEARCH)


async def test_it_ends_when_its_steps_are_used_up(headrace: Headrace) -> None:
    report = await work(headrace, Engine(SEARCH), max_steps=1)
    assert (report.chunk, report.status, report.steps) == (None, EndStatus.TURNS_EXHAUSTED, 1)


async def test_an_answer_without_chunks_is_a_message_without_a_fact(headrace: Headrace) -> None:
    report = await work(headrace, Engine("answer <end>"))
    assert (report.chunk, report.status) == (None, EndStatus.COMPLETED)


async def test_a_useless_sub_task_costs_a_step_and_asks_no_engine(headrace: Headrace) -> None:
    engine = Engine()
    report = await work(headrace, engine, SubTask("alpha", ("find",), ("help",)))
    assert (report.status, report.steps, engine.contexts) == (EndStatus.FAILED, 1, [])


async def test_an_engine_whose_version_moved_is_an_error_that_says_what_to_do(headrace: Headrace) -> None:
    with pytest.raises(PolicyError, match=r"frozen at 12.*without a follower"):
        await work(headrace, Engine(SEARCH, version=13))
