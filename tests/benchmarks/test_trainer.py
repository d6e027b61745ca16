"""The trainer's benchmark runs on a small load, and its contenders take the same step."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.trainer import gpu, measure, report, shapes
from tests.benchmarks.trainer.rollouts import as_batch, as_padded
from tests.benchmarks.trainer.shapes import SHAPES


def test_both_forms_of_a_batch_hold_the_same_tokens() -> None:
    rollouts = SHAPES["miniature"].rollouts()[:16]
    batch, padded = as_batch(rollouts), as_padded(rollouts)
    sampled = (padded["completion_mask"] * padded["tool_mask"]).bool()
    assert padded["completion_ids"][sampled].tolist() == batch.packed.token_ids[batch.packed.targets].tolist()
    assert padded["old_per_token_logps"][sampled].tolist() == batch.behaviour_logprobs.tolist()
    assert padded["prompt_mask"].sum() + padded["completion_mask"].sum() == len(batch.packed.token_ids)


def test_flops_are_six_a_weight_and_token_and_the_heads_for_sampled_tokens() -> None:
    shape = replace(SHAPES["miniature"], model=shapes.qwen3(10, 4, 1, 1, 1, 4, 8))
    layer = 4 * (2 * 4 + 2 * 4 + 3 * 8)
    assert shapes.flops(shape, [2, 3], 1) == 6 * layer * 5 + 6 * 4 * (4 + 9) + 6 * 10 * 4


@pytest.mark.nightly
def test_the_contenders_agree_on_loss_and_gradient(tmp_path: Path) -> None:
    figures = measure.measure(SHAPES["tiny"], 1, 1, tmp_path, lambda line: None)
    ours = figures["first"]["headrace"]
    for name in ("trl", "padded"):
        assert figures["first"][name]["loss"] == pytest.approx(ours["loss"], rel=1e-5)
        assert figures["first"][name]["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-4)
    assert sum(figures["profile"].values()) == pytest.approx(1)
    figures["about"] = {
        "machine": dict.fromkeys(("cpu", "cores", "memory_gib", "system", "python", "load_before"), "x"),
        "date": "today",
        "command": "c",
        "took_s": 1,
    }
    report.write({"tiny": figures}, tmp_path)
    assert json.loads((tmp_path / report.FIGURES).read_text())["tiny"]["tokens"] == figures["tokens"]
    assert "TRL" in (tmp_path / report.TABLE).read_text()
    assert (tmp_path / report.PLOT).stat().st_size > 10_000


@pytest.mark.nightly
def test_the_gpu_page_has_a_row_for_every_contender_even_if_it_cannot_run(tmp_path: Path) -> None:
    """On a CPU the sharded policy runs, and the GPU's kernels are refused by name."""
    said: list[str] = []
    in_time = gpu.Deadline(time.monotonic() + 600)
    figures = gpu.measure(SHAPES["tiny"], ("headrace", "sharded", "liger"), tmp_path, 1, in_time, said.append)
    whole, sharded = (figures["rows"][name] for name in ("headrace", "sharded"))
    assert sharded["first"]["loss"] == pytest.approx(whole["first"]["loss"], rel=1e-5)
    assert sharded["first"]["grad_norm"] == pytest.approx(whole["first"]["grad_norm"], rel=1e-4)
    assert "layers.liger needs a GPU" in figures["rows"]["liger"]["not_measured"]
    assert sum(figures["profile"].values()) == pytest.approx(1)
    late = gpu.measure(SHAPES["tiny"], ("padded",), tmp_path, 1, gpu.Deadline(time.monotonic() - 1), said.append)
    assert late["rows"]["padded"] == {"not_measured": "there was no time left"}
    page = gpu.markdown({"tiny": figures, "late": late}, {"device": "H200", "date": "", "torch": "", "command": ""})
    assert "headrace, FSDP2 on one rank" in page
    assert "there was no time left" in page
