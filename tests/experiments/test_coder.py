"""The short form of ``coder.py``: a step in the simulator, evaluations by size with and without summaries, and tables.

It does not say that the coder learns: that takes more steps than a test has.
"""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from tests.experiments.coder import BASE, SIZES, markdown, run


@pytest.mark.parametrize("no_summaries", [False, True])
def test_an_arm_is_trained_and_evaluated_by_size(tmp_path: Path, no_summaries: bool) -> None:
    settings = {"base": BASE, "seed": 0, "steps": 1, "held_out": 4, "learning_rate": 8e-4, "save": None}
    options = {"no_summaries": no_summaries, "length_cost": False, "control": False}
    result = run(Namespace(**settings, **options))
    assert [evaluation["version"] for evaluation in result["held_out"]] == [0, 1]
    assert len(result["steps"]) == 1
    assert set(result["by_size"]) == {str(size) for size in SIZES}
    used = [values["sampled"]["summaries"] for values in result["by_size"].values()]
    assert any(used) is not no_summaries
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result))
    text = markdown([file])
    assert f"{'without' if no_summaries else 'with'} summaries, 0" in text
    assert f"| {SIZES[-1]} |" in text
