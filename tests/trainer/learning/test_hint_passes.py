"""Hint distillation: only the hinted turn's tokens get its gradient, that of the divergence, and it is learnt."""

from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.schemas.records.reward import Hint
from headrace.schemas.records.trajectory import Turn
from headrace.trainer.batches.batch import AdmittedGroup, ResolvedMember, make_batch
from headrace.trainer.batches.packing import pack
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.hint_passes import hinted_turns
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.metric_registry import metric_named
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.losses.settings import CorrectionSettings, HintDirection, HintSettings
from headrace.trainer.model.load import load_model
from headrace.trainer.model.logprobs import token_logprobs
from tests.trainer.builders import (
    AT,
    UNCHECKED,
    admitted,
    member,
    off_policy_batch,
    segment,
    tiny_model,
    trajectory,
    with_hints,
)  # fmt: skip

VERSION = 3
WEIGHT = 0.5


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


def learner_of(directory, *, hints=None, learning_rate=1e-3, **settings):
    config = TrainerConfig(
        "localhost:1", "run", directory, directory / "checkpoints", "file:///nowhere", plausibility=UNCHECKED,
        optimizer=OptimizerSettings(learning_rate=learning_rate), hints=hints or HintSettings(), max_grad_norm=1e9,
        **settings,
    )  # fmt: skip
    return Learner(load_model(directory), config.learner)


def gradients(learner, batch, monkeypatch):
    """Takes a step without changing the weights. Returns, for each pass with a gradient, its token ids and the (T, H)
    gradient at the head's input; and the gradient of every parameter."""
    passes = []

    def watch(module, args, kwargs, output):
        hidden = output.last_hidden_state
        if hidden.requires_grad:
            ids = kwargs["input_ids"][0].tolist()
            hidden.register_hook(lambda gradient: passes.append((ids, gradient[0].clone())))

    handle = learner.model.base_model.register_forward_hook(watch, with_kwargs=True)
    monkeypatch.setattr(learner._optimizer, "step", lambda: None)
    metrics = learner.step(batch, VERSION)
    handle.remove()
    return passes, {name: each.grad.clone() for name, each in learner.model.named_parameters()}, metrics


def turns_of(batch):
    return hinted_turns(batch, np.ones(len(batch.packed.targets), bool), vocabulary=50, longest=128)[0]


def reference(directory, batch, direction, temperature=1.0):
    """The mean divergence over the hinted tokens, and its gradient, from logits of transformers' own model."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    terms = []
    for turn in turns_of(batch):
        with torch.no_grad():
            teacher = model(torch.from_numpy(turn.hinted_ids)[None]).logits[0] / temperature
        student = model(torch.from_numpy(turn.token_ids)[None]).logits[0] / temperature
        teacher = teacher[np.flatnonzero(turn.hinted_targets) - 1].log_softmax(-1)
        student = student[np.flatnonzero(turn.targets) - 1].log_softmax(-1)
        first, second = (teacher, student) if direction is HintDirection.FORWARD else (student, teacher)
        terms.append((first.exp() * (first - second)).sum(-1))
    mean = torch.cat(terms).mean()
    mean.backward()
    return mean.item(), {name: each.grad for name, each in model.named_parameters()}


@pytest.mark.parametrize("settings", [{}, {"max_tokens_per_pass": 12}, {"loss": "gspo"}, {"loss": "decoupled"}])
def test_the_gradient_of_all_other_tokens_is_bit_equal_with_and_without_hints(directory, monkeypatch, settings):
    batch = with_hints(off_policy_batch())
    without, _, _ = gradients(learner_of(directory, **settings), batch, monkeypatch)
    hints = HintSettings(weight=WEIGHT)
    passes, _, metrics = gradients(learner_of(directory, hints=hints, **settings), batch, monkeypatch)
    # The passes of the loss are the same, bit for bit, and those of the hints reach the hinted turns' tokens alone.
    for (ids, expected), (same_ids, found) in zip(without, passes, strict=False):
        assert ids == same_ids
        assert torch.equal(found, expected)
    extra = passes[len(without) :]
    turns = turns_of(batch)
    assert len(extra) > 0
    assert sum(len(ids) for ids, _ in extra) == sum(len(turn.token_ids) for turn in turns)
    touched = [(ids[row + 1], row) for ids, each in extra for row in each.abs().sum(-1).nonzero()[:, 0].tolist()]
    expected_tokens = sorted(token for turn in turns for token in turn.token_ids[turn.targets].tolist())
    assert sorted(token for token, _ in touched) == expected_tokens
    assert metrics["hinted_tokens"] == len(expected_tokens)


@pytest.mark.parametrize("direction", list(HintDirection))
@pytest.mark.parametrize(("temperature", "settings"), [(1.0, {}), (0.7, {"max_tokens_per_pass": 12})])
def test_value_and_gradient_equal_a_hand_written_reference(directory, monkeypatch, direction, temperature, settings):
    batch = with_hints(off_policy_batch())
    hints = HintSettings(weight=WEIGHT, direction=direction, temperature=temperature)
    _, without, _ = gradients(learner_of(directory, **settings), batch, monkeypatch)
    _, found, metrics = gradients(learner_of(directory, hints=hints, **settings), batch, monkeypatch)
    value, expected = reference(directory, batch, direction, temperature)
    assert metrics["hint_kl"] == pytest.approx(value, rel=1e-4)
    for name, each in expected.items():
        torch.testing.assert_close(found[name] - without[name], WEIGHT * each, atol=2e-5, rtol=2e-3)
    assert max(float(each.abs().max()) for each in expected.values()) > 0.01


def test_without_a_weight_hints_change_nothing(directory):
    plain, hinted = learner_of(directory), learner_of(directory)
    batch = off_policy_batch()
    one, other = plain.step(batch, VERSION), hinted.step(with_hints(batch), VERSION)
    assert one == other
    assert all(map(torch.equal, plain.model.parameters(), hinted.model.parameters()))


ACTIONS, HINT, ADVISED = (10, 11, 12, 13), 20, 10


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    """A policy that chooses among four actions at random and, after the hint, the advised one."""
    folder = tiny_model(tmp_path_factory.mktemp("advised"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    prompts = torch.tensor([[1, 2, prompt] for prompt in (3, 4, 5, 6)])
    hinted = torch.cat([prompts, torch.full((4, 1), HINT)], 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        loss = -model(prompts).logits[:, -1].log_softmax(-1)[:, list(ACTIONS)].mean()
        loss = loss - model(hinted).logits[:, -1].log_softmax(-1)[:, ADVISED].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


def advised_share(learner, *, hinted):
    with torch.no_grad():
        ids = torch.tensor([[1, 2, 3, *([HINT] if hinted else [])]])
        packed = pack([([*ids[0].tolist(), ADVISED], [0] * ids.shape[1] + [1])])
        return float(token_logprobs(learner.model, packed).logprobs.exp())


@pytest.mark.parametrize("direction", list(HintDirection))
def test_hinted_turns_move_toward_the_policy_that_reads_the_hint(advised, direction):
    """Without any advantage the loss has no gradient, so that the hint alone moves the policy."""
    ids = {"token_ids": array("i", [1, 2, 3, 12])}
    action = segment("cccS", logprobs=[-1.4]).model_copy(update=ids)
    of = trajectory("a", action).model_copy(update={"turns": [Turn(sampled_tokens=1, segment=0)]})
    hint = Hint(turn=0, token_ids=[HINT])
    group = AdmittedGroup(
        "g", AT, (ResolvedMember(member(of, advantage=0.0).model_copy(update={"hints": [hint]}), of),)
    )
    batch = make_batch([group], max_hinted_turns=8)
    for weight in (0.0, 1.0):
        learner = learner_of(advised, hints=HintSettings(weight=weight, direction=direction))
        assert advised_share(learner, hinted=False) == pytest.approx(0.25, abs=0.05)
        assert advised_share(learner, hinted=True) > 0.9
        metrics = [learner.step(batch, VERSION) for _ in range(40)]
        if weight:
            assert advised_share(learner, hinted=False) > 0.8
            assert advised_share(learner, hinted=True) > 0.9
            assert metrics[-1]["hint_kl"] < 0.2 * metrics[0]["hint_kl"]
        else:
            assert advised_share(learner, hinted=False) == pytest.approx(0.25, abs=0.05)


def test_a_step_with_substeps_distils_each_turn_in_its_trajectorys_update(directory):
    batch = with_hints(off_policy_batch())
    metrics = learner_of(directory, hints=HintSettings(weight=WEIGHT), substeps=3).step(batch, VERSION)
    assert metrics["hinted_turns"] == len(turns_of(batch))
    assert [name for name in metrics if metric_named(name) is None] == []


def test_a_turn_whose_tokens_are_all_masked_is_refused(directory):
    batch = with_hints(off_policy_batch())
    correction = CorrectionSettings(max_token_staleness=0)
    metrics = learner_of(directory, hints=HintSettings(weight=WEIGHT), correction=correction).step(batch, VERSION)
    assert metrics["hints_refused_masked"] > 0
    assert metrics["hinted_turns"] + metrics["hints_refused_masked"] == len(batch.hints)
    whole = learner_of(directory, hints=HintSettings(weight=WEIGHT), correction=correction).step(batch, 100)
    assert whole["hinted_turns"] == 0
    assert "hint_kl" not in whole


def test_refused_hints_are_metrics_by_reason(directory):
    batch = make_batch([admitted("g", trajectory("a", segment("ccSS")))])
    batch = with_hints(batch)
    too_new = replace(batch, hints=replace(batch.hints, token_ids=np.array([50, 1])))
    metrics = learner_of(directory, hints=HintSettings(weight=WEIGHT)).step(too_new, VERSION)
    assert metrics["hints_refused_vocabulary"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": -1}, "weight of hints"),
        ({"weight": float("nan")}, "weight of hints"),
        ({"max_turns": 0}, "max_turns of hints"),
        ({"temperature": 0}, "temperature of hints"),
        ({"direction": "both"}, "direction"),
    ],
)
def test_invalid_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        HintSettings(**settings)
