"""The static batch samples what the model says, also after contexts were rewritten and rows were taken over."""

from collections.abc import Sequence
from random import Random

import pytest
import torch
from transformers import Qwen3ForCausalLM

from headrace.trainer.model.miniature import miniature_qwen3
from tests.simulator.sampling import Attempt, Call, SamplingSettings, play

VOCABULARY, STOP = 40, 1
SETTINGS = SamplingSettings(stop_ids=(STOP,), max_tokens=5, rows=3, capacity=64)


class RewritingEpisode:
    """Appends a few tokens after each call, and drops some of its context's middle after every second."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.context = self.tokens(6)
        self.turns = 0

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(2, VOCABULARY) for _ in range(count)]

    def observe(self) -> Sequence[int]:
        return self.context

    def act(self, sampled: Sequence[int]) -> None:
        self.turns += 1
        self.context = [*self.context, *sampled, *self.tokens(self.random.randrange(1, 5))]
        if self.turns % 2 == 0:
            cut = self.random.randrange(len(self.context) - 2)
            self.context = self.context[:cut] + self.context[cut + 2 :]

    def reward(self) -> float:
        return float(self.turns)

    @property
    def is_done(self) -> bool:
        return self.turns >= 3 + self.random.randrange(2)


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    made = miniature_qwen3(VOCABULARY, end_id=STOP, pad_id=0, seed=4)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)  # peaked distributions: errors show
    return made.eval()


def played(model: Qwen3ForCausalLM, *, seed: int = 0, greedy: bool = False) -> list[Attempt[RewritingEpisode]]:
    return play(model, [RewritingEpisode(number) for number in range(8)], SETTINGS, seed=seed, greedy=greedy)


def calls_of(attempts: list[Attempt[RewritingEpisode]]) -> list[Call]:
    return [call for attempt in attempts for call in attempt.calls]


@torch.no_grad()
def forward_logprobs(model: Qwen3ForCausalLM, call: Call) -> torch.Tensor:
    """(S, V) log-probabilities by the model's own attention, without a cache."""
    ids_T = torch.tensor([*call.context, *call.sampled])
    return model(ids_T[None]).logits[0].log_softmax(-1)[len(call.context) - 1 : -1]


def test_simulated_log_probabilities_equal_a_plain_forward(model: Qwen3ForCausalLM) -> None:
    for call in calls_of(played(model)):
        sampled_S = torch.tensor(call.sampled)
        expected_S = forward_logprobs(model, call).gather(1, sampled_S[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(call.logprobs), expected_S, atol=2e-5, rtol=1e-5)


def test_a_temperature_divides_the_logits(model: Qwen3ForCausalLM) -> None:
    warm = SamplingSettings(stop_ids=(STOP,), max_tokens=5, capacity=64, temperature=2.0)
    [attempt] = play(model, [RewritingEpisode(0)], warm, seed=0)
    for call in attempt.calls:
        expected_SV = (forward_logprobs(model, call) / 2).log_softmax(-1)
        expected_S = expected_SV.gather(1, torch.tensor(call.sampled)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(call.logprobs), expected_S, atol=2e-5, rtol=1e-5)


def test_greedy_calls_take_the_likeliest_token(model: Qwen3ForCausalLM) -> None:
    for call in calls_of(played(model, greedy=True)):
        assert list(call.sampled) == forward_logprobs(model, call).argmax(-1).tolist()


def test_sampled_tokens_are_distributed_as_the_model_says(model: Qwen3ForCausalLM) -> None:
    one = SamplingSettings(stop_ids=(STOP,), max_tokens=1, rows=4000, capacity=32)
    attempts = play(model, [RewritingEpisode(0) for _ in range(4000)], one, seed=1)
    first = [attempt.calls[0] for attempt in attempts]
    expected_V = forward_logprobs(model, first[0])[0].exp()
    seen_V = torch.bincount(torch.tensor([call.sampled[0] for call in first]), minlength=VOCABULARY) / len(first)
    assert (seen_V - expected_V).abs().sum() < 0.15
    assert expected_V.max() < 0.9


def test_calls_end_at_the_stop_token_or_at_the_limit(model: Qwen3ForCausalLM) -> None:
    for call in calls_of(played(model)):
        assert STOP not in call.sampled[:-1]
        assert call.sampled[-1] == STOP or len(call.sampled) == SETTINGS.max_tokens


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(model: Qwen3ForCausalLM) -> None:
    assert calls_of(played(model)) == calls_of(played(model))
    assert calls_of(played(model)) != calls_of(played(model, seed=1))


def test_the_model_keeps_its_own_attention_afterwards(model: Qwen3ForCausalLM) -> None:
    before = model.config._attn_implementation
    played(model)
    assert model.config._attn_implementation == before


def test_a_context_beyond_the_capacity_is_refused_by_the_settings_name(model: Qwen3ForCausalLM) -> None:
    small = SamplingSettings(stop_ids=(STOP,), max_tokens=5, capacity=7)
    with pytest.raises(ValueError, match="raise capacity"):
        play(model, [RewritingEpisode(0)], small, seed=0)
