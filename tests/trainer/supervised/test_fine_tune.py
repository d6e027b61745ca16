"""Fine-tuning imitates only the tokens under the mask, and is reproducible."""

import copy
from collections.abc import Iterable

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from headrace.trainer.learning.schedules import RateShape, ScheduleSettings
from headrace.trainer.model.layers import LayerSettings, prepare_layers
from headrace.trainer.supervised.fine_tune import (
    SupervisedConfig,
    TuningExample,
    TuningProgress,
    fine_tune,
    held_out_loss,
)

VOCABULARY = 20


def fresh_model(seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )


def counting(starts: Iterable[int], length: int = 6) -> list[TuningExample]:
    """Every token is one more than the last: easy to imitate."""
    return [TuningExample([start + step for step in range(length)], [0] + [1] * (length - 1)) for start in starts]


def silent(progress: TuningProgress) -> None:
    """No report."""


def train(model: PreTrainedModel, examples: list[TuningExample], **settings: float | str) -> TuningProgress:
    schedule = ScheduleSettings(shape=RateShape.COSINE, warmup_steps=5, final_share=0.1)
    config = SupervisedConfig(**{"steps": 60, "batch_size": 8, "schedule": schedule, **settings})  # type: ignore[arg-type]
    return fine_tune(model, examples, examples[:2], config, silent)


def test_a_pattern_is_learnt() -> None:
    model = fresh_model()
    examples = counting(range(12))
    before = held_out_loss(model, examples)
    train(model, examples)
    assert held_out_loss(model, examples) < 0.25 * before


def test_passes_in_bfloat16_learn_it_too_and_the_weights_stay_float32() -> None:
    model, examples = fresh_model(), counting(range(12))
    before = held_out_loss(model, examples)
    train(model, examples, dtype="bfloat16")
    assert held_out_loss(model, examples) < 0.25 * before
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    in_bfloat16 = held_out_loss(model, examples, dtype=torch.bfloat16)
    assert in_bfloat16 != held_out_loss(model, examples)
    assert in_bfloat16 == pytest.approx(held_out_loss(model, examples), rel=0.1)
    rounded = copy.deepcopy(model)
    for weight in rounded.parameters():
        weight.data = weight.data.bfloat16()
    assert held_out_loss(rounded, examples, dtype=torch.bfloat16) == in_bfloat16


def test_tokens_outside_the_mask_do_not_teach() -> None:
    examples = [TuningExample([1, 2, 3, 4], [0, 1, 0, 0]), TuningExample([1, 2, 5, 6], [0, 1, 0, 0])]
    others = [TuningExample([1, 2, 9, 9], [0, 1, 0, 0]), TuningExample([1, 2, 8, 7], [0, 1, 0, 0])]
    first, second = fresh_model(), fresh_model()
    train(first, examples, steps=5)
    train(second, others, steps=5)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_padding_to_the_longest_of_a_batch_changes_no_loss() -> None:
    model = fresh_model()
    short, long = counting([3], length=4), counting([1], length=12)
    alone = (held_out_loss(model, short) * 3 + held_out_loss(model, long) * 11) / 14
    assert held_out_loss(model, short + long) == pytest.approx(alone, rel=1e-5)


def test_the_loss_is_the_mean_negative_log_probability_of_imitated_tokens() -> None:
    model = fresh_model()
    example = TuningExample([1, 2, 3], [0, 0, 1])
    with torch.no_grad():
        logprobs = model(torch.tensor([[1, 2, 3]])).logits.log_softmax(-1)
    assert held_out_loss(model, [example]) == pytest.approx(-logprobs[0, 1, 3].item(), rel=1e-5)


def test_the_same_seed_gives_bit_identical_weights() -> None:
    first, second = fresh_model(), fresh_model()
    train(first, counting(range(12)), seed=3, steps=10)
    train(second, counting(range(12)), seed=3, steps=10)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def noisy_model() -> GPT2LMHeadModel:
    """A model whose configuration asks for dropout."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.5)
    return GPT2LMHeadModel(config)


def test_a_model_that_asks_for_dropout_gets_the_same_weights_too_also_where_activations_are_computed_again() -> None:
    first, second, third = noisy_model(), noisy_model(), noisy_model()
    prepare_layers(third, LayerSettings(activation_checkpointing=True))
    for seed, model in enumerate((first, second, third)):
        torch.manual_seed(seed)
        train(model, counting(range(12)), steps=3)
    for one, two, three in zip(first.parameters(), second.parameters(), third.parameters(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_a_gradient_that_is_not_finite_is_an_error() -> None:
    model = fresh_model()
    model.lm_head.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(FloatingPointError, match="gradient's norm is"):
        train(model, counting(range(8)), steps=1)


def test_progress_is_reported_with_what_remains() -> None:
    reports: list[TuningProgress] = []
    config = SupervisedConfig(steps=25, batch_size=4, report_every=10)
    last = fine_tune(fresh_model(), counting(range(8)), counting([9]), config, reports.append)
    assert [report.step for report in reports] == [10, 20, 25]
    assert last == reports[-1]
    assert last.remaining_s == 0
    assert reports[0].remaining_s > 0


def test_every_example_is_seen_once_an_epoch() -> None:
    from headrace.trainer.supervised.fine_tune import _batches

    examples = counting(range(10))
    config = SupervisedConfig(steps=6, batch_size=4)
    batches = list(_batches(examples, config))
    for epoch in (batches[:3], batches[3:]):
        assert sorted(example.token_ids[0] for batch in epoch for example in batch) == list(range(10))


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(ValueError, match="needs examples"):
        fine_tune(fresh_model(), [], counting([1]), SupervisedConfig(), silent)


def test_examples_without_a_token_to_imitate_are_refused() -> None:
    with pytest.raises(ValueError, match="imitate"):
        TuningExample([1, 2], [0, 0])


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    model = fresh_model()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="learning_rate"):
        train(model, counting(range(8)))


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="mask of 2"):
        TuningExample([1, 2, 3], [0, 1])
