"""A rebuilt batch on disk equals the trained one."""

import json
import random

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from headrace.trainer.provenance.batch_file import write_batch
from headrace.trainer.provenance.evidence import absent
from headrace.trainer.provenance.rebuild import StepRecords, rebuild
from tests.trainer.provenance.history import History


@pytest.fixture
def rebuilt():
    history = History()
    step = history.train(random.Random(2), groups=3)
    return rebuild(step, StepRecords(history.groups, history.trajectories))


def test_its_arrays_and_their_description(rebuilt, tmp_path):
    path = tmp_path / "step.safetensors"
    beside = write_batch(rebuilt, path)
    found, description = load_file(path), json.loads(beside.read_text())
    assert path.stat().st_mode == beside.stat().st_mode
    for name, array in rebuilt.batch.arrays().items():
        np.testing.assert_array_equal(found[name], array)
    with safe_open(path, "numpy") as file:
        assert file.metadata()["sha256"] == rebuilt.step.data_sha256
    assert [each["trajectory_id"] for each in description["trajectories"]] == [
        name for group in rebuilt.step.groups for name in group.trajectory_ids
    ]
    for each in description["trajectories"]:
        advantages = found["advantages"][found["trajectories"] == each["index"]]
        assert len(advantages) == each["sampled_tokens"]
        assert np.all(advantages == np.float32(each["advantage"]))
        assert found["rewards"][each["index"]] == each["reward"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.json", "step.safetensors"]


def test_a_step_that_could_not_be_rebuilt_is_not_written(rebuilt, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        write_batch(rebuilt, tmp_path / "step.npz")
    nothing = rebuild(rebuilt.step, StepRecords({}, {}, [absent("training", (0, 1), "g", None)]))
    with pytest.raises(ValueError, match="nothing to write"):
        write_batch(nothing, tmp_path / "step.safetensors")
    assert not list(tmp_path.iterdir())
