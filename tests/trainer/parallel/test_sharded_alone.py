"""A single process can run the sharded policy of several ranks, and learns the same as with the whole one."""

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from headrace.trainer.checkpoints.resume import resume_learner
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.losses.settings import HintSettings
from headrace.trainer.parallel.settings import ParallelSettings
from tests.trainer.builders import UNCHECKED, off_policy_batch, tiny_model, with_hints

VERSION = 3


@pytest.fixture(autouse=True)
def no_group_afterwards():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def config_of(folder, *, shard_alone, dtype, **settings):
    return TrainerConfig(
        "localhost:1",
        "run",
        folder / "base",
        folder,
        "file:///nowhere",
        plausibility=UNCHECKED,
        dtype=dtype,
        optimizer=OptimizerSettings(learning_rate=1e-3),
        parallel=ParallelSettings(shard_alone=shard_alone),
        max_tokens_per_pass=12,
        **settings,
    )


def trained(folder, *, shard_alone, dtype, begin=None):
    """Returns a learner after two steps, or after one from the checkpoint ``begin``, and the last step's metrics."""
    learner = resume_learner(config_of(folder, shard_alone=shard_alone, dtype=dtype).learner, begin)
    metrics = {}
    for seed in (0, 1) if begin is None else (2,):
        metrics = learner.step(off_policy_batch(seed=seed), VERSION)
    return learner, metrics


def written(learner, folder):
    learner.write_model(folder / "model")
    learner.write_optimizer(folder / "optimizer")
    return folder


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 8e-3)])
def test_a_sharded_policy_alone_learns_what_a_whole_one_learns(tmp_path, dtype, tolerance):
    tiny_model(tmp_path / "base")
    whole, expected = trained(tmp_path, shard_alone=False, dtype=dtype)
    sharded, found = trained(tmp_path, shard_alone=True, dtype=dtype)
    assert not any(isinstance(weight, DTensor) for weight in whole.model.parameters())
    assert all(isinstance(weight, DTensor) for weight in sharded.model.parameters())
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4 if dtype == "float32" else 2e-2)
    one, other = (
        load_file(written(learner, tmp_path / name) / "model" / "model.safetensors")
        for learner, name in ((whole, "whole"), (sharded, "sharded"))
    )
    assert one.keys() == other.keys()
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < tolerance


def test_a_checkpoint_of_either_resumes_as_the_other(tmp_path):
    tiny_model(tmp_path / "base")
    weights = {}
    for before in (False, True):
        begun, _ = trained(tmp_path, shard_alone=before, dtype="float32")
        checkpoint = written(begun, tmp_path / f"begun {before}")
        for after in (False, True):
            learner, _ = trained(tmp_path, shard_alone=after, dtype="float32", begin=checkpoint)
            name = tmp_path / f"from {before} to {after}"
            weights[before, after] = load_file(written(learner, name) / "model" / "model.safetensors")
    expected = weights.pop((False, False))
    base = load_file(tmp_path / "base" / "model.safetensors")
    assert any(not torch.equal(expected[name], base[name]) for name in base)
    for found in weights.values():
        assert max(float((found[name] - expected[name]).abs().max()) for name in expected) < 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_hints_are_distilled_alike_by_a_whole_and_a_sharded_policy(tmp_path, dtype, tolerance):
    tiny_model(tmp_path / "base")
    found = []
    for shard_alone in (False, True):
        config = config_of(tmp_path, shard_alone=shard_alone, dtype=dtype, hints=HintSettings(weight=1.0))
        learner = resume_learner(config.learner, None)
        found.append([learner.step(with_hints(off_policy_batch(seed=seed)), VERSION) for seed in (0, 1)])
    for whole, sharded in zip(*found, strict=True):
        assert sharded["hinted_turns"] == whole["hinted_turns"] > 4
        for name in ("hint_kl", "grad_norm", "loss"):
            assert sharded[name] == pytest.approx(whole[name], rel=tolerance, abs=tolerance), name
