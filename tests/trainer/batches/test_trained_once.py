"""From an agent's events to the optimiser's passes: each sampled token is trained once, and no other token.

Histories are generated: calls that extend the context or send all of it, calls that fork or continue what any earlier
call ended with, prunes, summaries, templates that rewrite the past, sub-agents whose policy is frozen or trained,
repeated records mixed with those of other attempts. They pass through the real assembler, rewards, groups and
admission. Token ids never repeat, so each one identifies its origin.
"""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from itertools import count, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import (
    ContextPruned,
    ContextSummarized,
    ModelCalled,
    Role,
    Sampling,
    SubagentFinished,
    SubagentStarted,
    TrajectoryEnded,
    TrajectoryStarted,
    VersionSpan,
)
from headrace.schemas.ids import derived_id
from headrace.schemas.records.group import Reason, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.tokens import prefix_hash
from headrace.streams.drive import drive
from headrace.streams.topology import TOPOLOGY
from headrace.trainer.admission.admission import AdmissionRules, admit
from headrace.trainer.batches.balance import plan_ranks
from headrace.trainer.batches.batch import make_batch, owners_of_sequences
from headrace.trainer.batches.update import Update

RULES = AdmissionRules("default", max_staleness=10, vocabulary_size=10**6, max_positions=10**6)
STEPS = (
    "extend", "resend", "fork", "fork", "sample nothing", "prune", "summarise", "drift", "frozen sub-agent",
    "trained sub-agent",
)  # fmt: skip


@dataclass
class Attempt:
    """A running agent: its events, and the tokens that it sampled by version."""

    name: str
    draw: st.DrawFn
    ids: count
    facts: list = field(default_factory=list)
    sampled: dict[int, int] = field(default_factory=dict)
    others: list["Attempt"] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=list)

    def start(self, **fields) -> None:
        self.facts.append(TrajectoryStarted(task_id="task", agent="test", **fields))

    def fresh(self, least=1) -> list[int]:
        return [next(self.ids) for _ in range(self.draw(st.integers(least, 4)))]

    def call(self, context: list[int], *, after: list[int], least=1) -> None:
        """Call the model with ``context`` after the exact prefix ``after``."""
        sampled = self.fresh(least)
        cut = self.draw(st.integers(0, len(sampled)))  # new weights may arrive in the middle of a call
        spans = [(2, 0, cut), (3, cut, len(sampled))]
        self.facts.append(
            ModelCalled(
                model="m",
                prefix_length=len(after),
                prefix_sha256=prefix_hash(array("i", after)) if after else None,
                context_ids=context,
                sampled_ids=sampled,
                logprobs=[logprob_of(token) for token in sampled],
                version_spans=[VersionSpan(version=v, start=a, end=b) for v, a, b in spans if a < b],
                sampling=Sampling(temperature=1.0),
            )
        )
        self.context = after + context + sampled
        self.ends.append(self.context)
        self.sampled |= {token: 2 if place < cut else 3 for place, token in enumerate(sampled)}

    def act(self, step: str) -> None:
        held = list(self.context)
        match step:
            case "extend":
                self.call(self.fresh(), after=held)
            case "resend":
                self.call(held + self.fresh(), after=[])
            case "fork":
                self.call(self.fresh(), after=self.draw(st.sampled_from(self.ends)))
            case "sample nothing":
                self.call(self.fresh(), after=held, least=0)
            case "prune":
                kept = [token for token in held if self.draw(st.booleans())]
                self.facts.append(ContextPruned(pruned_ids=["c"], tokens_before=len(held), tokens_after=len(kept)))
                self.call(kept + self.fresh(), after=[])
            case "summarise":
                self.call(self.fresh(), after=held)  # the request is context, the summary is sampled
                summary = self.context[len(held) + 1 :]
                self.facts.append(ContextSummarized(tokens_before=len(self.context), tokens_after=len(summary)))
                self.call(self.fresh() + summary, after=[])
            case "drift":
                at = self.draw(st.integers(0, max(len(held) - 1, 0)))
                self.call(held[:at] + self.fresh() + held[at + 1 :] + self.fresh(), after=[])
            case "frozen sub-agent" | "trained sub-agent":
                self.delegate(Role.FROZEN if step.startswith("frozen") else Role.TRAINABLE)

    def delegate(self, role: Role) -> None:
        child = Attempt(f"{self.name}.{len(self.others)}", self.draw, self.ids)
        group = {} if role == Role.FROZEN else {"group_id": child.name, "group_size": 1}
        child.start(role=role, parent_trajectory_id=self.name, **group)
        child.call(child.fresh(), after=[])
        child.facts.append(TrajectoryEnded(outcome=1.0))
        self.others.append(child)
        self.facts.append(SubagentStarted(name="helper", sub_trajectory_id=child.name))
        self.facts.append(SubagentFinished(name="helper", sub_trajectory_id=child.name, steps=1))
        self.call([*child.context, *self.fresh()], after=list(self.context))  # its answer is an observation


def logprob_of(token: int) -> float:
    return -float(token) / 1024  # exact in float32


@st.composite
def histories(draw):
    """Draws two attempts at a task, all attempts in them, and their records in a possible order of a partition."""
    ids, attempts = count(1), []
    for number in range(2):
        attempt = Attempt(f"t{number}", draw, ids)
        attempt.start(group_id="g", group_size=2)
        attempt.act("extend")
        for step in draw(st.lists(st.sampled_from(STEPS), max_size=5)):
            attempt.act(step)
        attempt.facts.append(TrajectoryEnded(outcome=float(number)))
        attempts += [attempt, *attempt.others]
    queues = [
        [
            (Envelope(derived_id("e", each.name, n), fact.TYPE, "/test", 1_700_000_000_000, each.name, n), fact)
            for n, fact in enumerate(each.facts)
        ]
        for each in attempts
    ]
    random, events = draw(st.randoms(use_true_random=False)), []
    while queues := [queue for queue in queues if queue]:
        queue = random.choice(queues)
        events += [queue.pop(0)] * random.choice([1, 1, 1, 2])
    return attempts, events


@settings(max_examples=60, deadline=None)
@given(histories())
def test_every_sampled_token_is_trained_once_and_no_other_token_ever(history):
    attempts, events = history
    written = drive(TOPOLOGY, events)
    places = {(0, offset): each for offset, each in enumerate(written["trajectories"])}
    assert {defect for each in places.values() for defect in each.defects} <= {Defect.FROZEN_ROLE}
    groups = [each for each in written["training"] if isinstance(each, TrainingGroup)]
    admitted = [admit(group, Reference(partition=0, offset=0), places, RULES, 3) for group in groups]
    assert not any(rejections for _, rejections in admitted)
    batch = make_batch([group for group, _ in admitted if group is not None])

    # A frozen sub-agent's tokens are never trained; a group of one has no baseline to differ from.
    untrained = {each.trajectory_id: each.reason for each in written["rejected"]}
    assert set(untrained) == {each.name for each in attempts if "." in each.name}
    assert Reason.FROZEN_ROLE in untrained.values() or all(each.facts[0].role != Role.FROZEN for each in attempts)
    expected = {
        token: version for each in attempts if each.name not in untrained for token, version in each.sampled.items()
    }

    trained = batch.packed.token_ids[batch.packed.targets]
    assert Counter(trained.tolist()) == Counter(list(expected))
    assert batch.behaviour_logprobs.tolist() == [logprob_of(token) for token in trained.tolist()]
    assert batch.versions.tolist() == [expected[token] for token in trained.tolist()]
    for attempt, advantage in zip((each for each in attempts if each.name in ("t0", "t1")), (-0.5, 0.5), strict=True):
        assert set(batch.advantages[np.isin(trained, list(attempt.sampled))]) == {advantage}

    update = Update(batch, batch.behaviour_logprobs, np.ones_like(batch.behaviour_logprobs))
    for ranks, whole_trajectories in product((1, 3), (False, True)):
        seen: Counter[int] = Counter()
        for part in update.parts(2):
            owners = owners_of_sequences(part.batch) if whole_trajectories else None
            for passes in plan_ranks(part.batch.packed.lengths, 9, ranks, crossover=100, owners=owners):
                packed = [part.select(chosen)[0].batch.packed for chosen in passes]
                seen.update(token for one in packed for token in one.token_ids[one.targets].tolist())
        assert seen == Counter(list(expected))
