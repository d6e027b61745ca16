"""PARL: shaping that pays for sub-agents and anneals to zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.swarm import (
    ANNEALED_AT,
    ARMS,
    SHORT_ANNEALED_AT,
    SWARM,
    finished_share,
    parallel_share,
)
from tests.streams.attempts import attempt


def orchestrator(assigned: int, finished: int, *, version: int = 0, outcome: float = 1.0) -> Trajectory:
    made = attempt("t", agent="swarm", outcome=outcome, version=version)
    return made.model_copy(update={"subagents_assigned": assigned, "subagents_finished": finished})


@pytest.mark.parametrize(
    ("assigned", "finished", "total"),
    [
        (0, 0, 1.0),
        (1, 1, 1.0 + 0.3 * 0.1 + 0.2),
        (4, 3, 1.0 + 0.3 * 0.4 + 0.2 * 0.75),
        (10, 10, 1.5),
        (40, 10, 1.0 + 0.3 + 0.2 * 0.25),
    ],
)
def test_shaping_pays_for_delegated_and_returned_work(assigned: int, finished: int, total: float) -> None:
    assert SWARM.score(orchestrator(assigned, finished)).total == pytest.approx(total)


def test_lambda_reaches_zero_at_the_planned_version_and_stays_there() -> None:
    def weights(version: int) -> list[float]:
        components = SWARM.score(orchestrator(4, 4, version=version)).components
        return [components[name].weight for name in ("parallel", "finish", "outcome")]

    assert weights(0) == [0.3, 0.2, 1.0]
    assert weights(ANNEALED_AT // 2) == pytest.approx([0.15, 0.1, 1.0])
    assert weights(ANNEALED_AT - 1)[0] > 0
    for version in (ANNEALED_AT, ANNEALED_AT + 1, 10 * ANNEALED_AT):
        assert weights(version) == [0.0, 0.0, 1.0]


def test_after_annealing_only_the_outcome_counts() -> None:
    busy, idle = (SWARM.score(orchestrator(n, n, version=ANNEALED_AT, outcome=0.25)).total for n in (40, 0))
    assert busy == idle == 0.25


@pytest.mark.parametrize(
    ("arm", "first", "last"),
    [
        ("none", (0.0, 0.0), (0.0, 0.0)),
        ("annealed", (0.3, 0.2), (0.0, 0.0)),
        ("never-annealed", (0.3, 0.2), (0.3, 0.2)),
        ("parallel-only", (0.3, 0.0), (0.3, 0.0)),
    ],
)
def test_every_arm_records_both_shaping_terms_with_their_weight_at_each_version(
    arm: str, first: tuple[float, float], last: tuple[float, float]
) -> None:
    for version, (parallel, finish) in ((0, first), (SHORT_ANNEALED_AT, last), (10 * SHORT_ANNEALED_AT, last)):
        score = ARMS[arm].score(orchestrator(5, 4, version=version))
        components = score.components
        assert (components["parallel"].value, components["finish"].value) == (0.5, 0.8)
        assert (components["parallel"].weight, components["finish"].weight) == (parallel, finish)
        assert score.total == pytest.approx(1.0 + 0.5 * parallel + 0.8 * finish)


def test_arms_have_labels_of_their_own() -> None:
    assert len({spec.label for spec in (SWARM, *ARMS.values())}) == len(ARMS) + 1


@given(st.integers(0, 100), st.integers(0, 100))
def test_both_shares_stay_between_zero_and_one_and_grow(assigned: int, finished: int) -> None:
    assert 0 <= parallel_share(assigned) <= parallel_share(assigned + 1) <= 1
    assert 0 <= finished_share(assigned, finished) <= finished_share(assigned, finished + 1) <= 1
    assert finished_share(0, finished) == 0
