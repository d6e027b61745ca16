"""The rules around the program: its environment variables, and what it says of a rollout → the rollout's result."""

from pathlib import Path
from typing import Any

import pytest

from headrace.agents.environments.environment import Cause, Part
from headrace.agents.environments.verifiers_process import GATEWAY_KEY, VerifiersConfig, result_of, variables_of
from headrace.schemas.events import EndStatus


def said(**changes: Any) -> dict[str, Any]:
    scored = {"rewards": {"correct": [1.0, 0.5]}, "metrics": {"letters": 3.0, "unscored": None}}
    return {**scored, "stop": "agent_completed", "turns": 2, "errors": [], **changes}


def error(label: str, status: int | None = None) -> dict[str, Any]:
    return {"label": label, "message": "it broke", "status": status}


def test_rewards_and_metrics_are_the_environments() -> None:
    result = result_of(said())
    assert (result.status, result.rewards) == (EndStatus.COMPLETED, {"correct": Part(1.0, 0.5)})
    assert result.metrics == {"letters": 3.0, "turns": 2.0}


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        ("max_turns", EndStatus.TURNS_EXHAUSTED),
        ("max_total_tokens", EndStatus.BUDGET_EXHAUSTED),
        ("agent_timeout", EndStatus.BUDGET_EXHAUSTED),
        ("user_closed", EndStatus.COMPLETED),
        (None, EndStatus.COMPLETED),
    ],
)
def test_a_rollout_that_was_stopped_is_scored(stop: str | None, status: EndStatus) -> None:
    result = result_of(said(stop=stop))
    assert (result.status, result.failure, result.rewards) == (status, None, {"correct": Part(1.0, 0.5)})


@pytest.mark.parametrize(
    ("errors", "label", "cause"),
    [
        ([error("TaskError")], "TaskError", Cause.ROLLOUT),
        ([error("HarnessError")], "HarnessError", Cause.ROLLOUT),
        ([error("EnvError")], "EnvError", Cause.ROLLOUT),
        ([error("rollout_timeout")], "rollout_timeout", Cause.ROLLOUT),
        ([error("SandboxError")], "SandboxError", Cause.INFRASTRUCTURE),
        ([error("TunnelError")], "TunnelError", Cause.INFRASTRUCTURE),
        ([error("ProviderError", 503)], "ProviderError", Cause.INFRASTRUCTURE),
        ([error("ProviderError", 400)], "ProviderError", Cause.ROLLOUT),
        ([error("TaskError"), error("SandboxError")], "SandboxError", Cause.INFRASTRUCTURE),
    ],
)
def test_an_error_is_a_failure_with_verifiers_own_name(errors: list[Any], label: str, cause: Cause) -> None:
    result = result_of(said(errors=errors))
    assert result.failure is not None
    assert (result.status, result.failure.label, result.failure.cause) == (EndStatus.FAILED, label, cause)
    assert result.rewards == {}
    assert result.metrics["turns"] == 2.0


def test_scoring_that_ran_out_of_time_is_a_failure() -> None:
    result = result_of(said(rewards={"correct": [1.0, 1.0], "slow": None}, stop="scoring_timeout"))
    assert result.failure is not None
    assert (result.failure.label, result.failure.cause) == ("scoring_timeout", Cause.ROLLOUT)
    assert "slow" in result.failure.message


def test_the_program_has_none_of_our_settings_and_modules() -> None:
    ours = {
        "PYTHONPATH": "ours",
        "HEADRACE_KAFKA": "secret@broker",
        "HEADRACE_GATEWAY_KEY": "k",
        "PATH": "/bin",
        "HOME": "/h",
    }
    config = VerifiersConfig("/envs/bin/python", {}, "http://127.0.0.1:9", Path("log"), key="k")
    assert variables_of(config, ours) == {"PATH": "/envs/bin:/bin", "HOME": "/h", GATEWAY_KEY: "k"}
    assert "API_KEY" in GATEWAY_KEY  # verifiers hands such variables to no harness
