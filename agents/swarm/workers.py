"""Sub-agents at work in a live attempt, each with a trajectory of its own: scripted ones, and the frozen search agent.

    ScriptedWorkers().work(SubTask("alpha", ("employer",), ("ada",)), corpus, 3, own)   →  Report(c17, completed, 2)

A frozen agent's policy never changes during a run. Its calls are recorded in its own trajectory, whose role is frozen:
counted, and never trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from headrace.agents.conversation import Conversation, Policy
from headrace.agents.policy import Completion, PolicyError
from headrace.agents.search.corpus import Corpus
from headrace.agents.search.episode import run_episode as run_search
from headrace.agents.search.harness import Limits as SearchLimits
from headrace.agents.search.retrieval import Index
from headrace.agents.search.tasks import Task as SearchTask
from headrace.agents.swarm.harness import assign_result
from headrace.agents.swarm.subagents import Report, Skill, SubTask, scripted_report
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import EndStatus, Sampling


class Workers(Protocol):
    """Runs sub-agents."""

    @property
    def agent(self) -> str:
        """Name of the agent in the sub-agents' ``trajectory.started``."""
        ...

    async def work(self, subtask: SubTask, corpus: Corpus, max_steps: int, own: Trajectory) -> Report:
        """Work on ``subtask`` with at most ``max_steps`` model calls, at least 1; record it in ``own`` and end that."""
        ...


@dataclass(frozen=True, slots=True)
class ScriptedWorkers:
    """Sub-agents without a model, that succeed at a stated rate. Their trajectory's id decides, so the log has it."""

    skill: Skill = field(default_factory=Skill)
    agent: str = "swarm-scripted"

    async def work(self, subtask: SubTask, corpus: Corpus, max_steps: int, own: Trajectory) -> Report:
        """See :class:`Workers`. A call of the script is recorded as a model call without tokens."""
        report = scripted_report(subtask, corpus, max_steps, Random(f"scripted/{own.id}"), self.skill)
        said = assign_result(report)["message"]
        for step in range(report.steps):
            last = step == report.steps - 1
            content = said if last else f"search {' '.join((*subtask.system_prompt, *subtask.prompt))}"
            own.model_called("scripted", messages=[{"role": "assistant", "content": content}])
        own.end(report.status, {"chunk_ids": [report.chunk.chunk_id]} if report.chunk else None)
        return report


@dataclass(frozen=True, slots=True)
class FrozenPolicy:
    """A policy that must stay at one version: a checkpoint in an engine that no follower updates."""

    policy: Policy
    """Client of the engine."""
    version: int | None
    """The only version that it may sample with; ``None``: an engine without a stamp of versions."""

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.policy.model

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        """Sample a continuation. Raises :class:`PolicyError` if another version sampled it."""
        completion = await self.policy.generate(token_ids, sampling, stop_token_ids=stop_token_ids)
        versions = {span.version for span in completion.version_spans}
        if versions - {self.version}:
            found = ", ".join(sorted(map(str, versions)))
            raise PolicyError(
                f"the sub-agents' engine sampled with version {found}, and they are frozen at {self.version}: start it "
                "with that checkpoint, without a follower"
            )
        return completion


@dataclass(frozen=True, slots=True)
class FrozenSearchWorkers:
    """The search agent as sub-agents, sampled greedily from a frozen checkpoint. Its system prompt and its prompt
    together make its question, ``what is the employer of ada ?``, because its vocabulary has no other words."""

    policy: FrozenPolicy
    agent: str = "search"

    async def work(self, subtask: SubTask, corpus: Corpus, max_steps: int, own: Trajectory) -> Report:
        """See :class:`Workers`. Without a question nothing is sampled: the sub-agent fails at its first step."""
        if subtask.question is None:
            own.model_called(self.policy.model, messages=[{"role": "assistant", "content": "nothing to search for"}])
            own.end(EndStatus.FAILED)
            return Report(None, EndStatus.FAILED, 1)
        entity, relation = subtask.question
        chunk = corpus.by_question.get(subtask.question)
        task = SearchTask(
            task_id=own.id,
            question=("what", "is", "the", relation, "of", entity, "?"),
            corpus=corpus,
            index=Index(corpus),
            chain=(chunk,) if chunk else (),
        )
        limits = SearchLimits(turns=max_steps)
        done = await run_search(Conversation(self.policy, own), task, own, temperature=0.0, limits=limits)
        answered = done.answer["chunk_ids"] if done.answer else []
        found = next((corpus.by_id[chunk_id] for chunk_id in answered if chunk_id in corpus.by_id), None)
        return Report(found, done.status, own.model_calls)
