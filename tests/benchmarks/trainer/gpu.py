"""The trainer on one GPU, in ten minutes: tokens per second, share of the peak, memory and a time profile.

    python -m tests.benchmarks.trainer.gpu [--minutes 10] [--only 0.6b,4b] [--out FOLDER]

Compared with a plain padded step and TRL's, and with our own step under GPU-only settings, one at a time: FSDP2 on one
rank, compiled layers, FlashAttention 3, Liger's kernels, activations kept. Contenders use the GPU one after the other,
each in a separate process, since two do not fit. A contender that does not fit, is not installed or was left out for
lack of time is a row with the reason; shapes and contenders are in order of interest.

It needs torch, transformers, numpy, pydantic, tenacity, zstandard and psutil, and no Kafka. TRL is taken from
TRL_FOLDER if that is set; an empty TRL_FOLDER omits TRL.
"""

import argparse
import json
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tests.benchmarks.report import table_of
from tests.benchmarks.trainer.contenders import TITLES
from tests.benchmarks.trainer.measure import ContenderEnded, Worker, make_model, profile
from tests.benchmarks.trainer.shapes import GPU, SHAPES, Shape, flops

Figures = dict[str, Any]

ORDER = ("headrace", "padded", "compiled", "sharded", "trl", "fa3", "liger", "kept")
"""Contenders, the most informative first."""

WARM_UP, STEPS = 2, 5
"""Warm-up steps, and counted steps."""

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Peak dense bfloat16 FLOPS of a GPU, by a part of its name."""

RESULTS = Path(__file__).parents[1] / "results"
FIGURES, TABLE = "trainer-gpu.json", "trainer-gpu.md"


@dataclass(frozen=True, slots=True)
class Deadline:
    """Deadline after which no further contender starts."""

    at: float
    """On the monotonic clock, seconds."""

    @property
    def left_s(self) -> float:
        """Seconds until then."""
        return self.at - time.monotonic()


def measure(
    shape: Shape, contenders: Sequence[str], folder: Path, threads: int, deadline: Deadline, say: Callable[[str], None]
) -> Figures:
    """Every contender on ``shape``, one after the other, each with its fastest division."""
    model_dir = folder / shape.name
    begun = time.monotonic()
    weights = make_model(shape, model_dir)
    say(f"{weights / 1e6:,.1f} M weights made in {time.monotonic() - begun:.0f} s")
    rollouts = shape.rollouts()
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    sampled = sum(sum(rollout.loss_mask) for rollout in rollouts)
    rows = {name: _contender(name, shape, model_dir, threads, deadline, say) for name in contenders}
    ours = rows.get("headrace", {})
    wanted = "division" in ours and deadline.left_s > 0
    return {
        "title": shape.title,
        "weights": weights,
        "trajectories": len(rollouts),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "sampled": sampled,
        "flops": flops(shape, lengths, sampled),
        "rows": rows,
        "profile": profile(shape, model_dir, ours["division"], threads) if wanted else {},
    }


def _contender(
    name: str, shape: Shape, model_dir: Path, threads: int, deadline: Deadline, say: Callable[[str], None]
) -> Figures:
    """Steps of its fastest division, or the reason why there are none."""
    if name == "trl" and os.environ.get("TRL_FOLDER") == "":
        return {"not_measured": "TRL_FOLDER is empty"}
    best: Figures = {}
    problems = []
    for division in shape.passes if TITLES[name].startswith("headrace") else shape.micro_batches:
        if deadline.left_s < 0:
            problems.append("there was no time left")
            break
        worker = Worker(name, shape, model_dir, division, threads)
        try:
            first, *_ = [worker.step() for _ in range(WARM_UP)]
            walls = [worker.step()["wall_s"] for _ in range(STEPS)]
            peak = worker.end()["peak_mib"]
        except ContenderEnded as ended:
            problems.append(f"{division}: {ended.reason[:200]}")
            say(f"{name}, {problems[-1]}")
        except BaseException:
            worker.kill()
            raise
        else:
            say(f"{name}, {division}: {median(walls):.3f} s a step, {peak / 1024:.1f} GiB")
            if not best or median(walls) < median(best["walls_s"]):
                best = {"division": division, "walls_s": walls, "peak_mib": peak, "first": first}
    return best or {"not_measured": "; ".join(problems)}


def markdown(figures: dict[str, Figures], about: Figures) -> str:
    """The page."""
    text = f"""One {about["device"]}, {about["date"]}, torch {about["torch"]}; `{about["command"]}`. The whole step:
        forward, Dr. GRPO's loss, backward, clip, AdamW, bfloat16 passes over float32 weights. Medians of {STEPS} steps
        after {WARM_UP}; each contender alone on the GPU, with its fastest division of those tried. MFU counts no
        recomputation."""
    sections = [_section(shape, about["device"]) for shape in figures.values()]
    return "\n\n".join(["# The trainer on one GPU", textwrap.fill(" ".join(text.split()), 120), *sections]) + "\n"


def _section(shape: Figures, device: str) -> str:
    peak_flops = next((peak for part, peak in PEAK_FLOPS.items() if part in device), None)
    rows = []
    for name, row in shape["rows"].items():
        if "not_measured" in row:
            rows.append([TITLES[name], "", "", "", "", "", "", row["not_measured"]])
            continue
        wall = median(row["walls_s"])
        rows.append(
            [
                TITLES[name],
                f"{shape['tokens'] / wall:,.0f}",
                f"{shape['flops'] / wall / peak_flops:.0%}" if peak_flops else "",
                f"{row['peak_mib'] / 1024:.1f}",
                str(row["division"]),
                f"{row['first']['loss']:.5f}",
                f"{row['first']['grad_norm']:.5f}",
                "",
            ]
        )
    table = table_of(["", "tokens/s", "MFU", "GiB", "division", "loss", "norm", "not measured"], rows)
    text = f"""{shape["weights"] / 1e6:,.1f} M weights; {shape["trajectories"]} trajectories of {shape["tokens"]:,}
        tokens, {shape["sampled"]:,} of them sampled, the longest of {shape["longest"]:,}."""
    spent = ", ".join(f"{purpose} {share:.0%}" for purpose, share in shape["profile"].items() if share >= 0.005)
    after = [f"Where our step's time goes (torch.profiler): {spent}."] if spent else []
    before, *after = (textwrap.fill(" ".join(paragraph.split()), 120) for paragraph in (text, *after))
    return "\n\n".join([f"## {shape['title']}", before, table, *after])


def main() -> None:
    """Measure within the time limit; write and print the page after each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="limit; no contender starts in the last minute")
    parser.add_argument("--only", help=f"shapes, comma-separated, of {', '.join(shape.name for shape in GPU)}")
    parser.add_argument("--threads", type=int, default=8, help="of each contender's CPU side")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the page and the raw figures")
    options = parser.parse_args()
    deadline = Deadline(time.monotonic() + 60 * options.minutes - 60)
    names = options.only.split(",") if options.only else ["0.6b", "4b"]
    if unknown := set(names) - {shape.name for shape in GPU}:
        parser.error(f"there is no shape {', '.join(sorted(unknown))}: there are {', '.join(s.name for s in GPU)}")
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU: the CPU's benchmark is python -m tests.benchmarks.trainer")
    options.out.mkdir(parents=True, exist_ok=True)
    about = {
        "device": torch.cuda.get_device_name(),
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "command": f"python -m tests.benchmarks.trainer.gpu --minutes {options.minutes:g}",
    }
    figures: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:

            def say(line: str, name: str = name) -> None:
                print(f"{name}: {line}", file=sys.stderr, flush=True)

            figures[name] = measure(SHAPES[name], ORDER, Path(folder), options.threads, deadline, say)
            (options.out / FIGURES).write_text(json.dumps({"about": about, "shapes": figures}, indent=1) + "\n")
            (options.out / TABLE).write_text(markdown(figures, about))
    print((options.out / TABLE).read_text())


if __name__ == "__main__":
    main()
