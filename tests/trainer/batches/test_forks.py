"""Forks in the middle of a trajectory: from events to the batch, no sampled token is trained twice.

A parent is continued by several trajectories, each of which begins with the parent's tokens as context. Token ids never
repeat, so each one identifies where it was sampled.
"""

from array import array
from collections import Counter
from itertools import count, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ModelCalled, Sampling, TrajectoryEnded, TrajectoryStarted, VersionSpan
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.tokens import prefix_hash
from headrace.streams.drive import drive
from headrace.streams.grouping.group_policy import parse_policies
from headrace.streams.topology import TOPOLOGY
from headrace.trainer.admission.admission import AdmissionRules, admit
from headrace.trainer.batches.batch import make_batch

T0 = 1_700_000_000_000
RULES = AdmissionRules("default", max_staleness=10, vocabulary_size=10**6, max_positions=10**6)
SETTINGS = ("never", "once")


class Run:
    """A trajectory's events; ``tokens`` is its context, ``sampled`` what it sampled itself."""

    def __init__(self, name: str, ids: "count[int]", known: tuple[int, ...] = (), **start) -> None:
        self.name, self._ids, self.tokens, self.sampled = name, ids, list(known), []
        self.calls = 0
        self._known = bool(known)
        self.facts: list[Record] = [TrajectoryStarted(task_id="task", agent="test", **start)]

    def call(self) -> "Run":
        """Sample three tokens after two of context; the first call of a continuation has all it knows as context."""
        context, sampled = [next(self._ids) for _ in range(2)], [next(self._ids) for _ in range(3)]
        after = [] if self._known and not self.calls else self.tokens
        whole = self.tokens + context if not after else context
        self.facts.append(
            ModelCalled(
                model="m",
                prefix_length=len(after),
                prefix_sha256=prefix_hash(array("i", after)) if after else None,
                context_ids=whole,
                sampled_ids=sampled,
                logprobs=[-1.0] * 3,
                version_spans=[VersionSpan(version=1, start=0, end=3)],
                sampling=Sampling(temperature=1.0),
            )
        )
        self.tokens, self.calls = self.tokens + context + sampled, self.calls + 1
        self.sampled += sampled
        return self

    def end(self, outcome: float | None = None, continuations: int | None = None) -> "Run":
        self.facts.append(TrajectoryEnded(outcome=outcome, continuations=continuations))
        return self

    def continued(self, name: str, group: str, size: int) -> "Run":
        """A continuation from here, in a group of ``size`` continuations."""
        link = {"parent_trajectory_id": self.name, "fork_turn": self.calls, "fork_group_id": "parents"}
        return Run(name, self._ids, tuple(self.tokens), group_id=group, group_size=size, **link)

    def events(self, time_ms: int = T0) -> list[tuple[Envelope, Record]]:
        return [
            (Envelope(derived_id("e", self.name, n), fact.TYPE, "/test", time_ms, self.name, n), fact)
            for n, fact in enumerate(self.facts)
        ]


def driven(runs: list[Run], setting: str, until_ms: int | None = None) -> dict[str, list[Record]]:
    events = [event for run in runs for event in run.events()]
    return drive(TOPOLOGY, events, until_ms=until_ms, policies=parse_policies({"*": {"forked_prefix": setting}}))


def trained(written: dict[str, list[Record]]) -> "Counter[int]":
    """How often each token is a target of the batch of all groups."""
    places = {(0, offset): each for offset, each in enumerate(written["trajectories"]) if isinstance(each, Trajectory)}
    assert not [each.defects for each in places.values() if each.defects]
    groups = [each for each in written["training"] if isinstance(each, TrainingGroup)]
    admitted = [admit(group, Reference(partition=0, offset=0), places, RULES, 1)[0] for group in groups]
    if not admitted:
        return Counter()
    packed = make_batch([group for group in admitted if group is not None]).packed
    return Counter(packed.token_ids[packed.targets].tolist())


def tree() -> tuple[list[Run], list[Run]]:
    """Two parents, each continued by two; the continuations of the first succeed once, those of the second never."""
    ids = count(1)
    parents = [Run(f"p{n}", ids, group_id="parents", group_size=2).call().call() for n in range(2)]
    children = []
    for number, parent in enumerate(parents):
        parent.end(continuations=2)
        children += [
            parent.continued(f"{parent.name}.{n}", f"of {parent.name}", 2).call().end(float(number == 0 and n == 0))
            for n in range(2)
        ]
    return parents, children


def members(written: dict[str, list[Record]]) -> dict[str, tuple[float, float]]:
    """Reward and advantage of each trained trajectory."""
    groups = [each for each in written["training"] if isinstance(each, TrainingGroup)]
    return {one.trajectory_id: (one.reward, one.advantage) for group in groups for one in group.members}


def reasons(written: dict[str, list[Record]]) -> dict[str, Reason]:
    return {each.trajectory_id: each.reason for each in written["rejected"] if isinstance(each, Rejection)}


def test_under_never_the_parents_tokens_are_trained_by_nobody() -> None:
    parents, children = tree()
    written = driven([*parents, *children], "never")
    assert reasons(written) == {
        "p0": Reason.FORKED, "p1": Reason.FORKED, "p1.0": Reason.ALL_FAIL, "p1.1": Reason.ALL_FAIL
    }  # fmt: skip
    assert trained(written) == Counter([token for child in children[:2] for token in child.sampled])


def test_under_once_a_parent_has_the_mean_of_its_continuations_and_trains_its_tokens() -> None:
    parents, children = tree()
    written = driven([*parents, *children], "once")
    assert members(written) == {"p0": (0.5, 0.25), "p1": (0.0, -0.25), "p0.0": (1.0, 0.5), "p0.1": (0.0, -0.5)}
    expected = [token for run in (*parents, *children[:2]) for token in run.sampled]
    assert trained(written) == Counter(expected)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_parents_and_continuations_may_be_scored_in_any_order(order: tuple[int, ...]) -> None:
    (p0, p1), children = tree()
    runs = [p0, p1, children[0], children[1]]
    usual = driven([p0, p1, *children], "once")
    written = driven([*(runs[place] for place in order), *children[2:]], "once")
    assert members(written) == members(usual)
    assert reasons(written) == reasons(usual)


def test_a_parent_whose_continuations_time_out_has_the_mean_of_those_that_were_scored() -> None:
    parents, children = tree()
    written = driven([*parents, children[0], *children[2:]], "once", until_ms=T0 + 3_600_000)
    assert members(written) == {"p0": (1.0, 0.5), "p1": (0.0, -0.5)}
    assert reasons(written)["p0.0"] is Reason.INCOMPLETE_GROUP


def test_a_parent_without_a_scored_continuation_is_unscored() -> None:
    parents, children = tree()
    written = driven([*parents, *children[:2]], "once", until_ms=T0 + 3_600_000)
    assert reasons(written)["p1"] is Reason.UNSCORED
    assert Counter(token for run in parents for token in run.sampled).keys() & trained(written).keys() == set()


def test_a_finished_trajectory_keeps_its_own_reward_when_it_is_continued_later() -> None:
    ids = count(1)
    parents = [Run(f"p{n}", ids, group_id="parents", group_size=2).call() for n in range(2)]
    children = [parents[0].continued(f"c{n}", "again", 2).call().call().end(float(n)) for n in range(2)]
    for number, parent in enumerate(parents):
        parent.call().end(float(number))
    for setting in SETTINGS:
        written = driven([*parents, *children], setting)
        assert members(written)["p0"] == (0.0, -0.5)
        assert trained(written) == Counter([token for run in (*parents, *children) for token in run.sampled])


def test_a_continuation_may_itself_be_continued() -> None:
    ids = count(1)
    parents = [Run(f"p{n}", ids, group_id="parents", group_size=2).call() for n in range(2)]
    parents[0].end(continuations=2)
    parents[1].end(0.0)
    first = parents[0].continued("c0", "middle", 2).call()
    second = parents[0].continued("c1", "middle", 2).call().end(0.0)
    last = [first.continued(f"d{n}", "last", 2).call().end(float(n)) for n in range(2)]
    first.end(continuations=2)
    written = driven([*parents, first, second, *last], "once")
    rewards = {name: reward for name, (reward, _) in members(written).items()}
    assert rewards == {"p0": 0.25, "p1": 0.0, "c0": 0.5, "c1": 0.0, "d0": 0.0, "d1": 1.0}
    runs = [*parents, first, second, *last]
    assert trained(written) == Counter([token for run in runs for token in run.sampled])


def test_continuations_of_another_tenant_do_not_count() -> None:
    ids = count(1)
    parents = [Run(f"p{n}", ids, group_id="parents", group_size=2, tenant="eu").call() for n in range(2)]
    parents[0].end(continuations=1)
    parents[1].end(0.0)
    forged = Run("x", ids, tuple(parents[0].tokens), group_id="of x", group_size=1, parent_trajectory_id="p0",
                 fork_turn=1, tenant="us").call().end(1.0)  # fmt: skip
    written = driven([*parents, forged], "once", until_ms=T0 + 3_600_000)
    assert reasons(written)["p0"] is Reason.UNSCORED


@st.composite
def trees(draw: st.DrawFn) -> list[Run]:
    """One to three parents; some are continued, from their end or from before it, by up to three."""
    ids, runs, number = count(1), [], draw(st.integers(1, 3))
    for place in range(number):
        parent = Run(f"p{place}", ids, group_id="parents", group_size=number).call()
        size = draw(st.integers(0, 3))
        children = [
            parent.continued(f"c{place}{n}", f"of {place}", size).call().end(float(draw(st.integers(0, 2))))
            for n in range(size)
        ]
        if size and draw(st.booleans()):
            parent.end(continuations=size)
        else:
            parent.call().end(float(draw(st.integers(0, 2))))
        runs += [parent, *children]
    return draw(st.permutations(runs))


@settings(max_examples=60, deadline=None)
@given(trees(), st.sampled_from(SETTINGS))
def test_every_sampled_token_is_trained_at_most_once_and_each_trajectory_has_one_fate(
    runs: list[Run], setting: str
) -> None:
    written = driven(runs, setting, until_ms=T0 + 3_600_000)
    found = trained(written)
    assert set(found.values()) <= {1}
    assert sorted([*members(written), *reasons(written)]) == sorted(run.name for run in runs)
    of = {token: run.name for run in runs for token in run.sampled}
    assert {of[token] for token in found} == set(members(written))
    assert all(set(run.sampled) <= found.keys() for run in runs if run.name in members(written))
