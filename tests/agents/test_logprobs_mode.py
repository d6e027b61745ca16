"""The kind of an engine's log-probabilities is asked again once the engine may be another process."""

from array import array
from typing import Any

import pytest

from headrace.agents.logprobs_mode import VALID_S, LogprobsProbe
from headrace.schemas.arrays import FloatArray
from headrace.schemas.events import Sampling

WARM = Sampling(temperature=0.7)


class RestartedEngine:
    """An engine that samples with the mode of its latest start."""

    def __init__(self) -> None:
        self.logprob = 0.0
        self.asked = 0

    async def sample(self, sampling_params: dict[str, Any]) -> FloatArray:
        self.asked += 1
        return array("f", [self.logprob])


@pytest.mark.parametrize("how", ["failure", "time"])
async def test_an_engine_that_was_started_anew_is_asked_again(how: str) -> None:
    engine, now = RestartedEngine(), [100.0]
    probe = LogprobsProbe("e", clock=lambda: now[0])
    for _ in range(2):
        assert await probe.mode_for(WARM, [1], engine.sample) == "processed"
    assert engine.asked == 1
    engine.logprob = -0.5
    if how == "failure":
        probe.forget()
    else:
        now[0] += VALID_S
    assert await probe.mode_for(WARM, [1], engine.sample) == "raw"
    assert engine.asked == 2


async def test_the_warning_about_an_engine_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    engine, probe = RestartedEngine(), LogprobsProbe("e")
    engine.logprob = -0.5
    for _ in range(3):
        probe.forget()
        assert await probe.mode_for(WARM, [1], engine.sample) == "raw"
    assert len(caplog.records) == 1
