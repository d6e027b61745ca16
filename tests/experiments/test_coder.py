"""The short form of ``coder.py``: the coder learns within twelve steps; arms, tables and picture."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.experiments import coder
from tests.experiments.coder import SIZES, markdown, picture, run


def options(**changes: Any) -> Namespace:
    """The command's default options, with ``changes``."""
    return Namespace(**(vars(coder.parser().parse_args([])) | changes))


@pytest.mark.parametrize("no_summaries", [False, True])
def test_an_arm_is_trained_and_evaluated_by_size(tmp_path: Path, no_summaries: bool) -> None:
    result = run(options(steps=1, groups=2, held_out=4, by_size=2, no_summaries=no_summaries))
    assert [evaluation["version"] for evaluation in result["held_out"]] == [0, 1]
    assert len(result["steps"]) == 1
    assert set(result["by_size"]) == {str(size) for size in SIZES}
    assert any(values["summaries"] for values in result["by_size"].values()) is not no_summaries
    text = markdown([json.loads(json.dumps(result))])
    assert f"{'without' if no_summaries else 'with'} summaries, 0" in text
    assert f"| {SIZES[-1]} |" in text
    picture([result], tmp_path / "learnt.png")
    assert (tmp_path / "learnt.png").stat().st_size > 1000


def test_the_coder_learns_to_look_constants_up_and_the_outcome_follows() -> None:
    result = run(options(steps=12, held_out=48, by_size=0))
    before, after = (evaluation["sampled"] for evaluation in result["held_out"])
    assert after["looked_up"] > before["looked_up"] + 0.2
    assert after["outcome"] > before["outcome"] + 0.25
