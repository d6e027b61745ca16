"""A learner restored from its checkpoint continues bit-identically, whatever its settings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headrace.schemas.objects.store import file_sha256
from headrace.trainer.batches.batch import make_batch
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.learning.schedules import ScheduleSettings
from headrace.trainer.losses.settings import CorrectionSettings, KlSettings
from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.load import load_model
from headrace.trainer.model.lora import LoraSettings
from headrace.trainer.model.policy import load_policy, load_reference
from headrace.trainer.weights.canary import max_error
from tests.trainer.builders import UNCHECKED, admitted, segment, tiny_model, trajectory
from tests.trainer.zoo import write_model

ADAMW = OptimizerSettings(learning_rate=1e-3, weight_decay=0.01)
MUON = replace(ADAMW, name="muon")
LORA = LoraSettings(rank=4)
SETTINGS = {
    "adamw": {"optimizer": ADAMW},
    "muon": {"optimizer": MUON},
    "linear": {"optimizer": ADAMW, "schedule": ScheduleSettings(shape="linear", warmup_steps=1, decay_steps=5)},
    "cosine": {"optimizer": MUON, "schedule": ScheduleSettings(shape="cosine", warmup_steps=3, decay_steps=9)},
    "bfloat16": {"optimizer": ADAMW, "dtype": "bfloat16"},
    "bfloat16, muon": {"optimizer": MUON, "dtype": "bfloat16", "substeps": 2},
    "lora": {"optimizer": ADAMW, "lora": LORA},
    "lora, bfloat16": {
        "optimizer": ADAMW,
        "lora": LORA,
        "dtype": "bfloat16",
        "correction": CorrectionSettings(importance="truncate"),
    },
    "checkpointed": {"optimizer": ADAMW, "dtype": "bfloat16", "layers": LayerSettings(activation_checkpointing=True)},
    "reference": {"optimizer": ADAMW, "dtype": "bfloat16", "kl": KlSettings(0.1)},
}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request, tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("base"), tied=request.param)


def config_of(base, **settings):
    return TrainerConfig(
        "b:1", "run", base, base / "checkpoints", "file:///s", **{"plausibility": UNCHECKED} | settings
    )


def opened(config, written=None):
    model = load_policy(config.model, written and written / "model")
    learner = Learner(model, config.learner, load_reference(config.model))
    if written:
        learner.read_optimizer(written / "optimizer")
    return learner


def write(learner, folder):
    learner.write_model(folder / "model")
    learner.write_optimizer(folder / "optimizer")
    return folder


def batch_of(version):
    random = np.random.default_rng(version)
    parts = [
        segment("cc" + "S" * n, vocabulary=41, logprobs=random.normal(-4, 1, n).clip(max=0).tolist(), versions=[0] * n)
        for n in range(2, 8)
    ]
    members = [trajectory(f"t{number}", part) for number, part in enumerate(parts)]
    return make_batch([admitted("g", *members, advantages=random.normal(0, 1, 6).tolist())])


def train(learner, versions):
    for version in versions:
        learner.step(batch_of(version), version)


@pytest.mark.parametrize("name", SETTINGS)
def test_it_resumes_bit_identically(base, tmp_path, name):
    config = config_of(base, **SETTINGS[name])
    whole = opened(config)
    train(whole, range(4))

    first = opened(config)
    train(first, range(2))
    resumed = opened(config, write(first, tmp_path / "two"))
    train(resumed, range(2, 4))

    one, other = write(whole, tmp_path / "whole"), write(resumed, tmp_path / "resumed")
    assert file_sha256(one / "model" / "model.safetensors") == file_sha256(other / "model" / "model.safetensors")
    assert file_sha256(one / "model" / "model.safetensors") != file_sha256(base / "model.safetensors")
    states = [load_file(next((folder / "optimizer").iterdir())) for folder in (one, other)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


@pytest.mark.parametrize("name", SETTINGS)
def test_the_canaries_are_those_of_the_published_model(base, tmp_path, name):
    config = config_of(base, **SETTINGS[name])
    learner = opened(config)
    train(learner, range(2))
    learner.write_model(tmp_path / "model")
    served = load_model(tmp_path / "model", dtype=config.dtype)
    canaries = learner.canaries(seed=1)
    engine = Learner(served, replace(config, lora=LoraSettings(), kl=KlSettings()).learner).canaries(seed=1)
    assert max_error(canaries, [list(canary.logprobs) for canary in engine]) < 1e-6


@pytest.mark.parametrize(
    ("made", "taken_up"),
    [("adamw", "bfloat16"), ("bfloat16", "adamw"), ("adamw", "lora"), ("lora", "adamw")],
)
def test_a_state_made_with_other_settings_is_refused(base, tmp_path, made, taken_up):
    written = write(opened(config_of(base, **SETTINGS[made])), tmp_path)
    with pytest.raises(ValueError, match=r"dtype or lora.*checkpoint_dir"):
        opened(config_of(base, **SETTINGS[taken_up]), written)


def test_adapters_of_another_base_model_are_refused(tmp_path):
    base = tiny_model(tmp_path / "base")
    config = config_of(base, **SETTINGS["lora"])
    written = write(opened(config), tmp_path / "written")
    opened(config, written)
    tiny_model(base, seed=1)
    with pytest.raises(ValueError, match="another base model"):
        opened(config, written)


def test_a_bfloat16_run_learns_what_a_float32_run_does(tmp_path):
    """At 1e-5 a step, below the last place of bfloat16 weights: in the same direction, and most of the distance."""
    base = write_model(tmp_path / "base", "qwen3", dtype=torch.bfloat16)
    learners = [
        opened(config_of(base, optimizer=OptimizerSettings(learning_rate=1e-5), dtype=dtype))
        for dtype in ("float32", "bfloat16")
    ]
    start = [parameter.detach().clone() for parameter in learners[0].model.parameters()]
    ways = []
    for learner in learners:
        train(learner, range(6))
        moved = zip(learner.model.parameters(), start, strict=True)
        ways.append(torch.cat([(parameter - old).flatten() for parameter, old in moved]).detach())
    assert torch.cosine_similarity(*ways, dim=0) > 0.9
    assert 0.8 < ways[1].norm() / ways[0].norm() < 1.25
