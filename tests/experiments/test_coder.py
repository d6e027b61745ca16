"""The short form of ``coder.py``: one seed learns, and tables of results are made."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from tests.experiments.coder import BASE, SIZES, markdown, run


def arguments(**changes: object) -> Namespace:
    settings = {
        "base": BASE,
        "seed": 0,
        "steps": 30,
        "held_out": 64,
        "learning_rate": 8e-4,
        "no_summaries": False,
        "length_cost": False,
        "control": False,
        "save": None,
    }
    return Namespace(**{**settings, **changes})


@pytest.mark.slow
def test_the_coder_learns_on_held_out_tasks(tmp_path: Path) -> None:
    result = run(arguments())
    before, after = result["held_out"]
    assert after["sampled"]["reward"] >= before["sampled"]["reward"] + 0.25
    assert after["greedy"]["reward"] >= before["greedy"]["reward"] + 0.25
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result))
    text = markdown([file])
    assert "with summaries, 0" in text
    assert f"| {SIZES[-1]} |" in text
