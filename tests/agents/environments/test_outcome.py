"""The rule: a rollout's result → the end of its session."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.environments.environment import Cause, Part, RolloutResult, failed
from headrace.agents.environments.outcome import checked, end_of_session, outcome_of, reward_of
from headrace.agents.gateway.session_grants import MAX_ANSWER_BYTES, EndRequest, read_request
from headrace.schemas.events import EndStatus
from headrace.schemas.finite import MAX_REWARD


def result(**rewards: float) -> RolloutResult:
    return RolloutResult(rewards={name: Part(score) for name, score in rewards.items()}, stop="agent_completed")


def test_the_outcome_is_the_weighted_sum_and_the_parts_are_in_the_answer() -> None:
    scored = RolloutResult(
        EndStatus.TURNS_EXHAUSTED, {"correct": Part(1.0), "short": Part(0.5, 0.2)}, {"turns": 3.0}, "max_turns"
    )
    assert end_of_session(checked(scored), 0.0) == {
        "status": "turns_exhausted",
        "outcome": 1.1,
        "answer": {
            "stop": "max_turns",
            "rewards": {"correct": [1.0, 1.0], "short": [0.5, 0.2]},
            "metrics": {"turns": 3.0},
        },
    }


@pytest.mark.parametrize(("cause", "outcome"), [(Cause.ROLLOUT, -0.5), (Cause.INFRASTRUCTURE, None)])
def test_a_failure_has_an_outcome_if_the_policy_can_bring_it_about(cause: Cause, outcome: float | None) -> None:
    end = end_of_session(checked(failed(cause, "TaskError", "it broke")), -0.5)
    assert (end["status"], end["outcome"]) == ("failed", outcome)
    assert end["answer"]["failure"] == {"cause": cause.value, "label": "TaskError", "message": "it broke"}


def test_no_reward_is_the_environments_failure() -> None:
    found = checked(result())
    assert found.failure is not None
    assert (found.failure.cause, found.failure.label) == (Cause.INFRASTRUCTURE, "no_reward")


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 2 * MAX_REWARD])
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_what_is_no_number_is_a_labelled_failure(score: float, weight: float) -> None:
    found = checked(RolloutResult(rewards={"odd": Part(score, weight), "good": Part(1.0)}))
    assert found.failure is not None
    assert (found.status, found.failure.cause, found.failure.label) == (
        EndStatus.FAILED, Cause.ROLLOUT, "reward_not_finite",
    )  # fmt: skip


def test_a_sum_that_no_trajectory_can_have_is_a_failure() -> None:
    found = checked(result(a=MAX_REWARD, b=MAX_REWARD))
    assert found.failure is not None
    assert found.failure.label == "reward_not_finite"


def test_parts_beyond_the_limit_count_and_are_not_recorded() -> None:
    end = end_of_session(result(**{f"r{number:010}": 1.0 for number in range(5_000)}), 0.0)
    assert end["outcome"] == 5_000
    assert 100 < len(end["answer"]["rewards"]) == 5_000 - end["answer"]["omitted"]


@given(
    st.dictionaries(st.text(max_size=400), st.tuples(st.floats(), st.floats()), max_size=300),
    st.dictionaries(st.text(max_size=400), st.floats(), max_size=300),
    st.text(max_size=5_000),
)
def test_the_gateway_accepts_every_end(
    rewards: dict[str, tuple[float, float]], metrics: dict[str, float], text: str
) -> None:
    parts = {name: Part(*values) for name, values in rewards.items()}
    for found in (RolloutResult(rewards=parts, metrics=metrics, stop=text), failed(Cause.ROLLOUT, text, text, metrics)):
        found = checked(found)
        end = end_of_session(found, 0.0)
        read_request(EndRequest, end)
        assert end["outcome"] == outcome_of(found, 0.0)
        if found.failure is None:
            assert end["outcome"] == reward_of(found)


def test_the_largest_answer_fits_the_gateway() -> None:
    name = "\U0001f600" * 500
    metrics = {f"{number}{name}": 0.1234567890123 for number in range(1_000)}
    parts = {each: Part(value, value) for each, value in metrics.items()}
    for found in (RolloutResult(rewards=parts, metrics=metrics, stop=name), failed(Cause.ROLLOUT, name, name, metrics)):
        end = end_of_session(found, 0.0)
        assert len(json.dumps(end["answer"])) < MAX_ANSWER_BYTES
        read_request(EndRequest, end)
