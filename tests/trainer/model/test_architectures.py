"""Packed training is correct for the tested architectures; others are refused or logged with a warning."""

import logging

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.schemas.objects.store import file_sha256
from headrace.trainer.batches.packing import pack
from headrace.trainer.model.architectures import TESTED, UnsupportedModel, obstacles, position_limit, sliding_window
from headrace.trainer.model.load import load_model, longest_sequence, save_model
from headrace.trainer.model.logprobs import token_logprobs
from tests.trainer.builders import random_sequences
from tests.trainer.zoo import POSITIONS, config_of, write_model


@pytest.fixture(scope="module", params=sorted(TESTED))
def directory(request, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), request.param)


def plain_model(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def each_alone(model, sequences):
    logprobs = []
    for ids, mask in sequences:
        table = model(torch.tensor(ids)[None]).logits[0].log_softmax(-1)
        logprobs += [table[index - 1, ids[index]] for index in np.flatnonzero(mask)]
    return torch.stack(logprobs)


def test_packed_logprobs_and_gradients_are_the_plain_models(directory):
    sequences = random_sequences(6, seed=1)
    model, plain = load_model(directory), plain_model(directory)
    found, expected = token_logprobs(model, pack(sequences)).logprobs, each_alone(plain, sequences)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    assert expected.std() > 0.2  # with uniform outputs any computation would agree
    found.sum().backward()
    expected.sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-3, rtol=1e-3, msg=name)


def test_a_saved_model_loads_in_plain_transformers(directory, tmp_path):
    save_model(load_model(directory), tmp_path / "same")
    assert file_sha256(tmp_path / "same" / "model.safetensors") == file_sha256(directory / "model.safetensors")

    trained = load_model(directory)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(1.01)
    save_model(trained, tmp_path / "trained")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        logits = plain_model(tmp_path / "trained")(ids).logits
        torch.testing.assert_close(logits, _with_plain_attention(trained)(ids).logits, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(logits, plain_model(directory)(ids).logits, atol=1e-3)


def _with_plain_attention(model):
    model.set_attn_implementation("eager")
    return model


def test_a_tested_architecture_logs_no_warning(directory, caplog):
    with caplog.at_level(logging.WARNING):
        load_model(directory)
    assert not caplog.records


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_head_and_embedding_stay_tied_or_apart(tmp_path, tied):
    directory = write_model(tmp_path / "in", "llama", tie_word_embeddings=tied)
    model = load_model(directory)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    save_model(model, tmp_path / "out")
    assert file_sha256(tmp_path / "out" / "model.safetensors") == file_sha256(directory / "model.safetensors")


def test_an_untested_architecture_that_agrees_logs_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load_model(write_model(tmp_path, "olmo3"))
    assert "olmo3" in caplog.text
    assert "this architecture is not tested" in caplog.text


@pytest.mark.parametrize(
    ("model_type", "changes", "why"),
    [
        ("t5", {}, "encoder-decoder"),
        ("mixtral", {}, "mixture of experts"),
        ("gpt_oss", {}, "mixture of experts"),
        ("gemma2", {}, "attn_logit_softcapping"),
        ("gemma2", {"attn_logit_softcapping": None}, "final_logit_softcapping"),
        ("cohere", {}, "logit_scale"),
        ("lfm2", {}, "layers of the type conv"),
        ("mamba", {}, "cannot be replaced"),
        ("bloom", {}, "cannot be replaced"),
        ("falcon", {}, "cannot be replaced"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "rotary"),
        ("bert", {}, "log-probabilities"),
    ],
)
def test_unsupported_models_are_refused_with_their_reason(tmp_path, model_type, changes, why):
    with pytest.raises(UnsupportedModel, match=f"model_dir .*{model_type}.* cannot be trained: .*{why}"):
        load_model(write_model(tmp_path, model_type, **changes))


def test_an_unknown_obstacle_fails_the_trial(tmp_path, monkeypatch):
    # Without the check for soft caps the model is loaded, and the trial detects them.
    monkeypatch.setattr("headrace.trainer.model.load.obstacles", lambda config: [])
    with pytest.raises(UnsupportedModel, match="soft caps"):
        load_model(write_model(tmp_path / "a", "gemma2"))
    with pytest.raises(UnsupportedModel, match="nats"):
        load_model(write_model(tmp_path / "b", "gemma2", attn_logit_softcapping=None, final_logit_softcapping=1.0))


def test_weights_that_are_not_finite_are_named(tmp_path):
    model = load_model(write_model(tmp_path / "in", "llama"))
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    save_model(model, tmp_path / "out")
    with pytest.raises(UnsupportedModel, match="not finite"):
        load_model(tmp_path / "out")


def test_a_window_bounds_the_sequences_and_is_logged(tmp_path, caplog):
    model = load_model(write_model(tmp_path, "mistral", sliding_window=20))
    assert longest_sequence(model) == 20
    assert "windows" in caplog.text
    ids = np.arange(20)
    token_logprobs(model, pack([(ids, [0] + [1] * 19)]))
    with pytest.raises(ValueError, match="sliding"):
        token_logprobs(model, pack([(np.arange(21), [0] + [1] * 20)]))


@pytest.mark.parametrize(
    ("model_type", "changes", "window"),
    [
        ("mistral", {"sliding_window": 20}, 20),
        ("mistral", {"sliding_window": 4096}, 4096),
        ("mistral", {}, None),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 20}, None),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}, 20),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2}, None),
        ("gemma3_text", {"sliding_window": 20}, 20),
    ],
)
def test_the_window_is_that_of_the_narrowest_layer(model_type, changes, window):
    config = config_of(model_type, **changes)
    assert sliding_window(config) == window
    assert position_limit(config) == min(window or POSITIONS, POSITIONS)


def test_every_tested_architecture_has_no_obstacle():
    assert not [why for model_type in TESTED for why in obstacles(config_of(model_type))]
