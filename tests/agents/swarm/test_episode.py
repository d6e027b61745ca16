"""A live attempt runs sub-agents concurrently, each in a frozen trajectory of its own, and records every step."""

import asyncio
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace.agents.conversation import Conversation
from headrace.agents.encoding import Note
from headrace.agents.policy import Completion, PolicyError
from headrace.agents.raised import Raised
from headrace.agents.sdk import Headrace
from headrace.agents.search.corpus import Corpus
from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.episode import run_episode
from headrace.agents.swarm.harness import Done, Limits
from headrace.agents.swarm.subagents import Report, Skill, SubTask
from headrace.agents.swarm.tasks import Source, Split, make_task, task_id
from headrace.agents.swarm.workers import ScriptedWorkers, Workers
from headrace.agents.trajectory import Trajectory
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import EndStatus, ModelCalled, Sampling, VersionSpan
from headrace.schemas.records.group import Reason, Rejection
from headrace.schemas.records.trajectory import Trajectory as Assembled
from headrace.streams.drive import drive
from headrace.streams.topology import TOPOLOGY

TASK = next(
    task
    for number in range(99)
    if (task := make_task(task_id(Split.TRAIN, number))).source is Source.WIDE and len(task.evidence) == 8
)
RELATION = TASK.evidence[0].triple.relation
ENTITIES = [chunk.triple.subject for chunk in TASK.evidence]
CREATE = f"create_subagent alpha {RELATION} <end>"
ASSIGN = " ".join(f"assign_task alpha {entity}" for entity in ENTITIES[:4]) + " <end>"
ANSWER = f"answer {' '.join(TASK.targets[:4])} <end>"
RUN = "swarm-7"


class Scripted:
    """A policy that samples given turns."""

    model = "policy"

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.contexts: list[list[int]] = []

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        self.contexts.append(list(token_ids))
        turn = words.encode(self.lines.pop(0))
        spans = (VersionSpan(version=3, start=0, end=len(turn)),)
        return Completion(array("i", turn), array("f", [-0.5] * len(turn)), spans, "stop", 0.1)


class Timed:
    """Sub-agents that take given numbers of steps and all wait for one another."""

    agent = "timed"

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.begun = 0
        self.together = asyncio.Event()

    async def work(self, subtask: SubTask, corpus: Corpus, max_steps: int, own: Trajectory) -> Report:
        place, self.begun = self.begun, self.begun + 1
        if self.begun == len(self.steps):
            self.together.set()
        await self.together.wait()
        for _ in range(self.steps[place]):
            own.model_called("timed")
        assert subtask.question is not None
        own.end(EndStatus.COMPLETED)
        return Report(corpus.by_question[subtask.question], EndStatus.COMPLETED, self.steps[place])


class Unavailable(Timed):
    """Sub-agents whose engine fails for the first of them."""

    async def work(self, subtask: SubTask, corpus: Corpus, max_steps: int, own: Trajectory) -> Report:
        if not self.begun:
            self.begun = 1
            raise PolicyError("no engine")
        return await super().work(subtask, corpus, max_steps, own)


@pytest.fixture
def headrace() -> Iterator[Headrace]:
    sdk = Headrace("127.0.0.1:9", source="test", consent="train", flush_deadline_s=0)
    yield sdk
    sdk.close()


@pytest.fixture
def notes(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> list[Note]:
    seen: list[Note] = []
    monkeypatch.setattr(headrace._sender, "put", lambda fields: seen.append(Note(*fields)))
    return seen


async def attempt(headrace: Headrace, workers: Workers, *lines: str) -> tuple[Scripted, Done]:
    policy = Scripted(*lines)
    start = {"group_id": "g", "group_size": 2, "run": RUN, "task": TASK.facts}
    async with headrace.trajectory(task_id=TASK.task_id, trajectory_id="t-1", agent="swarm", **start) as trajectory:
        limits = Limits(failed_searches=0.0)
        done = await run_episode(Conversation(policy, trajectory), TASK, trajectory, workers, run=RUN, limits=limits)
    return policy, done


def assembled(notes: list[Note]) -> tuple[Assembled, list[Assembled], list[Rejection]]:
    """Return the orchestrator's trajectory, those of its sub-agents, and the rejections, as the streams make them."""
    events = [
        (
            Envelope(f"e{place}", note.model.TYPE, "/test", 1_000 + place, note.trajectory_id, note.seq),
            note.model.model_validate({name: _plain(value) for name, value in note.fields.items()}),
        )
        for place, note in enumerate(notes)
    ]
    records = drive(TOPOLOGY, events)  # type: ignore[arg-type]
    trajectories = {each.trajectory_id: each for each in records["trajectories"]}
    own = trajectories.pop("t-1")
    return own, list(trajectories.values()), list(records["rejected"])


def _plain(value: Any) -> Any:
    """Return an exception as text, as the sender writes it."""
    return repr(value) if isinstance(value, Raised) else value


async def test_sub_agents_of_a_turn_run_concurrently_and_their_messages_are_observed(headrace: Headrace) -> None:
    policy, done = await attempt(headrace, Timed(2, 2, 2, 2), CREATE, ASSIGN, ANSWER)
    assert (done.status, done.outcome) == (EndStatus.COMPLETED, pytest.approx(2 / 3))
    observed = words.decode(policy.contexts[-1])
    assert all(" ".join((*chunk.words[:1], chunk.triple.subject)) in observed for chunk in TASK.evidence[:4])


@pytest.mark.parametrize(("steps", "critical"), [((6, 1, 4, 2), 9), ((4, 3, 3, 3), 7)])
async def test_critical_steps_in_the_log_are_the_turns_and_the_slowest_sub_agent(
    headrace: Headrace, notes: list[Note], steps: tuple[int, ...], critical: int
) -> None:
    await attempt(headrace, Timed(*steps), CREATE, ASSIGN, ANSWER)
    own, _, _ = assembled(notes)
    assert (own.critical_steps, own.total_steps) == (critical, 3 + 13)
    assert (own.subagents_assigned, own.subagents_finished) == (4, 4)


async def test_sub_agents_have_frozen_trajectories_that_are_counted_and_never_trained(
    headrace: Headrace, notes: list[Note]
) -> None:
    await attempt(headrace, ScriptedWorkers(), CREATE, ASSIGN, ANSWER)
    _, subs, rejections = assembled(notes)
    assert len(subs) == 4
    assert {(sub.started.agent, sub.started.parent_trajectory_id, sub.started.run) for sub in subs if sub.started} == {
        ("swarm-scripted", "t-1", RUN)
    }
    frozen = {each.trajectory_id for each in rejections if each.reason is Reason.FROZEN_ROLE}
    assert frozen == {sub.trajectory_id for sub in subs}


async def test_no_token_of_a_sub_agent_is_one_that_the_orchestrator_sampled(
    headrace: Headrace, notes: list[Note]
) -> None:
    await attempt(headrace, Timed(2, 2, 2, 2), CREATE, ASSIGN, ANSWER)
    own, _, _ = assembled(notes)
    [segment] = own.segments
    sampled = [token for token, mask in zip(segment.token_ids, segment.loss_mask, strict=True) if mask]
    assert words.decode(sampled) == f"{CREATE} {ASSIGN} {ANSWER}"
    read = words.decode([token for token, mask in zip(segment.token_ids, segment.loss_mask, strict=True) if not mask])
    assert TASK.evidence[0].triple.value in read


async def test_unfinished_sub_agents_are_recorded_as_they_ended(headrace: Headrace, notes: list[Note]) -> None:
    await attempt(headrace, ScriptedWorkers(Skill(0.0, 0.0)), CREATE, ASSIGN, "answer <end>")
    own, subs, _ = assembled(notes)
    assert (own.subagents_assigned, own.subagents_finished) == (4, 0)
    assert {sub.status for sub in subs} == {EndStatus.TURNS_EXHAUSTED}


async def test_a_failing_engine_fails_the_attempt_after_the_other_sub_agents_have_ended(
    headrace: Headrace, notes: list[Note]
) -> None:
    with pytest.raises(PolicyError, match="no engine"):
        await attempt(headrace, Unavailable(1, 2, 2, 2), CREATE, ASSIGN, ANSWER)
    own, subs, _ = assembled(notes)
    assert own.status is EndStatus.FAILED
    assert (own.subagents_assigned, own.subagents_finished) == (4, 3)
    assert len(subs) == 4


async def test_calls_of_the_orchestrator_are_recorded_with_their_results(headrace: Headrace, notes: list[Note]) -> None:
    fact = TASK.evidence[0]
    lookup = (f"find_page {fact.triple.subject} <end>", f"read_page {fact.doc_id} {RELATION} <end>")
    await attempt(headrace, ScriptedWorkers(), *lookup, CREATE, "nothing <end>", "answer <end>")
    own, _, _ = assembled(notes)
    tools = [(use.tool, use.error_class) for turn in own.turns for use in turn.tools]
    assert [tool for tool, _ in tools] == ["find_page", "read_page", "create_subagent", "unknown"]
    assert tools[-1][1] == "invalid_arguments"
    assert sum(note.model is ModelCalled for note in notes) == 5
