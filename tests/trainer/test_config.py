from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.optimizers import OptimizerName, OptimizerSettings
from headrace.trainer.learning.schedules import RateShape, ScheduleSettings
from headrace.trainer.losses.settings import CorrectionSettings, Importance, KlSettings, LossSettings, Normaliser
from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.lora import LoraSettings


def config(**settings):
    known = {"bootstrap": "localhost:9092", "run": "r", "model_dir": Path("m"), "checkpoint_dir": Path("c")}
    return TrainerConfig(**(known | {"store_url": "file:///s"} | settings))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("loss", "ppo"),
        ("run", "../elsewhere"),
        ("run", ""),
        ("store_url", "data/objects"),
        ("store_url", "s3:///prefix"),
        ("dtype", "float16"),
        ("groups_per_step", 0),
        ("constant_length", 0),
        ("max_grad_norm", 0.0),
        ("lora and muon", {"lora": LoraSettings(rank=4), "optimizer": OptimizerSettings(name="muon")}),
        ("lora and bfloat16", {"lora": LoraSettings(rank=4), "dtype": "bfloat16", "loss": "dapo"}),
        ("decay_steps", {"schedule": ScheduleSettings(shape="cosine")}),
        ("max_staleness", -1),
        ("seed", -1),
        ("seed", 2**63),
        ("keep_checkpoints", 0),
        ("canary_length", 1),
        ("ratio_max", {"loss": "dapo", "loss_settings": LossSettings(ratio_max=5.0)}),
        ("importance", {"loss": "decoupled", "correction": CorrectionSettings(importance="mask")}),
    ],
)
def test_an_invalid_setting_is_named(setting, value):
    with pytest.raises(ValueError, match=setting):
        config(**(value if isinstance(value, dict) else {setting: value}))


def test_adapters_in_bfloat16_need_an_importance_correction():
    adapters = {"lora": LoraSettings(rank=4), "dtype": "bfloat16"}
    with pytest.raises(ValueError, match=r'correction: \{"importance": "truncate"\}, or the loss decoupled'):
        config(**adapters, loss="dapo")
    assert config(**adapters, loss="decoupled")
    assert config(**adapters, loss="dapo", correction=CorrectionSettings(importance="truncate"))
    assert config(lora=LoraSettings(rank=4), loss="dapo")


def test_the_hash_covers_what_is_learnt_and_not_where():
    assert config().sha256() == config(bootstrap="b:1", checkpoint_dir=Path("x"), steps=3, threads=1).sha256()
    different = {config(**{name: value}).sha256() for name, value in
                 [("optimizer", OptimizerSettings(learning_rate=1e-4)), ("schedule", ScheduleSettings(warmup_steps=1)),
                  ("loss", "dr_grpo"), ("seed", 1), ("shuffle_advantages", True),
                  ("loss_settings", LossSettings(ratio_max=4.0)), ("kl", KlSettings(0.1)),
                  ("correction", CorrectionSettings(max_token_staleness=1))]}  # fmt: skip
    assert len(different | {config().sha256()}) == 9


def test_settings_can_be_plain_values_of_a_command_line():
    options = {
        "loss": "dapo",
        "loss_settings": {"clip_high": 0.25, "normaliser": "sequence_mean"},
        "correction": {"importance": "mask", "ratio_max": 3},
        "kl": {"coefficient": 0.01, "reference": "behaviour"},
        "optimizer": {"name": "muon", "betas": [0.9, 0.95]},
        "schedule": {"shape": "linear", "decay_steps": 10},
        "lora": {"alpha": 8, "targets": ["q_proj"]},
        "layers": {"activation_checkpointing": True},
    }
    known = {"bootstrap": "b:1", "run": "r", "model_dir": "m", "checkpoint_dir": "c", "store_url": "file:///s"}
    made = TypeAdapter(TrainerConfig).validate_python(known | options)
    assert made.loss_settings == LossSettings(clip_high=0.25, normaliser=Normaliser.SEQUENCE_MEAN)
    assert made.correction == CorrectionSettings(importance=Importance.MASK, ratio_max=3.0)
    assert made.chosen_loss().proximal
    assert made.optimizer == OptimizerSettings(name=OptimizerName.MUON, betas=(0.9, 0.95))
    assert made.lora == LoraSettings(alpha=8.0, targets=("q_proj",))
    assert made.layers == LayerSettings(activation_checkpointing=True)
    assert made.schedule == ScheduleSettings(shape=RateShape.LINEAR, decay_steps=10)
    with pytest.raises(ValidationError, match="importance"):
        TypeAdapter(TrainerConfig).validate_python(known | {"correction": {"importance": "clip"}})
