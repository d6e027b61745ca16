"""A half-done attempt continues from the log: answers are not sampled again, events are not sent again."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.agents.conversation import Conversation
from headrace.agents.encoding import Note
from headrace.agents.policy import Completion
from headrace.agents.rollouts.replayed import NotTheSameContext, ReplayedPolicy
from headrace.agents.sdk import Headrace
from headrace.agents.search import vocabulary as words
from headrace.agents.search.episode import run_episode
from headrace.agents.search.rollouts import SEARCH_TASKS
from headrace.schemas.events import EndStatus, ModelCalled, Sampling, TrajectoryEnded
from tests.agents.rollouts.toy import ToyTask, episode

TASK = ToyTask("toy-1")


class Scripted:
    """A policy that answers from a list."""

    model = "policy"

    def __init__(self, *answers: Sequence[int]) -> None:
        self.asked: list[list[int]] = []
        self._answers = list(answers)

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        self.asked.append(list(token_ids))
        tokens = array("i", self._answers.pop(0))
        return Completion(tokens, array("f", [-0.5] * len(tokens)), (), "stop", 0.1)


def fields_of(note: Note) -> dict[str, Any]:
    """Return the fields of an event, without times."""
    return {name: value for name, value in note.fields.items() if name != "latency_s"}


def told(notes: list[Note]) -> list[tuple[int, type, dict[str, Any]]]:
    return [(note.seq, note.model, fields_of(note)) for note in notes]


def calls_in(notes: list[Note]) -> list[ModelCalled]:
    return [ModelCalled.model_validate(note.fields) for note in notes if note.model is ModelCalled]


@pytest.mark.parametrize("known", range(1, 8))
async def test_an_attempt_that_was_cut_off_anywhere_ends_as_if_it_had_not_been(
    headrace: Headrace, notes: list[Note], known: int
) -> None:
    whole = Scripted([5, 2], [6, 2], [7, 2])
    with headrace.trajectory(task_id=TASK.task_id, agent="toy", trajectory_id="t") as t:
        await episode(Conversation(whole, t), TASK, t, 1.0)
    expected = told(notes)
    assert len(expected) == 11  # start, three turns of a call and a tool, end
    cut = notes[:known]
    notes.clear()
    done = calls_in(cut)
    engine = Scripted(*[[5, 2], [6, 2], [7, 2]][len(done) :])
    with headrace.continued("t", known, replays=True) as t:
        await episode(Conversation(ReplayedPolicy(engine, done), t), TASK, t, 1.0)
    assert told(notes) == expected[known:]
    assert engine.asked == whole.asked[len(done) :]


async def test_the_search_agent_goes_on_after_a_prune(headrace: Headrace, notes: list[Note]) -> None:
    task = SEARCH_TASKS.training(1_000_000, 1)
    query = task.question[-2]
    found = [chunk.chunk_id for chunk in task.index.search([query])[:3]]
    texts = (f"search_corpus {query} <end>", f"prune_chunks {found[0]} <end>", f"answer {found[1]} <end>")
    answers = [words.encode(text) for text in texts]
    with headrace.trajectory(task_id=task.task_id, agent="search", trajectory_id="t") as t:
        await run_episode(Conversation(Scripted(*answers), t), task, t)
    expected = told(notes)
    assert expected[-1][2]["answer"] == {"chunk_ids": [found[1]]}
    for known in range(1, len(expected)):
        done = calls_in(notes[:known])
        cut, notes[:] = notes[:], []
        with headrace.continued("t", known, replays=True) as t:
            policy = ReplayedPolicy(Scripted(*answers[len(done) :]), done)
            await run_episode(Conversation(policy, t), task, t)
        assert told(notes) == expected[known:]
        notes[:] = cut


async def test_another_context_than_that_of_the_log_is_an_error(headrace: Headrace, notes: list[Note]) -> None:
    with headrace.trajectory(task_id="x", agent="toy", trajectory_id="t") as t:
        await episode(Conversation(Scripted([5, 2], [6, 2], [7, 2]), t), TASK, t, 1.0)
    policy = ReplayedPolicy(Scripted(), calls_in(notes))
    with (
        pytest.raises(NotTheSameContext, match="depends on more than"),
        headrace.continued("t", 2, replays=True) as t,
    ):
        await episode(Conversation(policy, t), ToyTask("toy-2"), t, 1.0)


def test_an_abandoned_attempt_ends_after_its_last_event(headrace: Headrace, notes: list[Note]) -> None:
    trajectory = headrace.continued("t", 5, replays=False)
    trajectory.end(EndStatus.RESTARTED, error="why")
    trajectory.end()
    assert [(note.seq, note.model, note.fields["status"]) for note in notes] == [
        (5, TrajectoryEnded, EndStatus.RESTARTED)
    ]
    assert headrace.stats.dropped == {"after_end": 1}
