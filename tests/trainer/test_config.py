from pathlib import Path

import pytest

from headrace.trainer.config import TrainerConfig


def config(**settings):
    known = {"bootstrap": "localhost:9092", "run": "r", "model_dir": Path("m"), "checkpoint_dir": Path("c")}
    return TrainerConfig(**(known | {"store_url": "file:///s"} | settings))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("loss", "ppo"),
        ("run", "../elsewhere"),
        ("run", ""),
        ("dtype", "float16"),
        ("groups_per_step", 0),
        ("constant_length", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("max_staleness", -1),
        ("keep_checkpoints", 0),
        ("canary_length", 1),
    ],
)
def test_a_setting_that_cannot_work_is_named(setting, value):
    with pytest.raises(ValueError, match=setting):
        config(**{setting: value})


def test_the_hash_is_of_what_is_learnt_and_not_of_where():
    assert config().sha256() == config(bootstrap="b:1", checkpoint_dir=Path("x"), steps=3, threads=1).sha256()
    different = {config(**{name: value}).sha256() for name, value in
                 [("learning_rate", 1e-4), ("loss", "dr_grpo"), ("seed", 1), ("shuffle_advantages", True)]}  # fmt: skip
    assert len(different | {config().sha256()}) == 5
