"""The trainer's speed compared with TRL's GRPO trainer and a plain padded step, in one run: table, plot, raw figures.

    python -m tests.benchmarks.trainer [--only miniature,long] [--rounds 5] [--threads 2] [--out FOLDER]

Same weights, batch, loss and optimiser; no contender generates. Each contender is a separate process and takes its
steps alternately with the others, with its fastest division. The package index is needed once, for TRL. Compare rows of
one run with each other, not figures of different machines. Shapes omitted by ``--only`` keep their figures.
On a GPU, on which contenders do not fit together: ``python -m tests.benchmarks.trainer.gpu``.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tests.benchmarks.streams import machine
from tests.benchmarks.trainer import report
from tests.benchmarks.trainer.measure import Figures, measure
from tests.benchmarks.trainer.shapes import CPU, SHAPES

RESULTS = Path(__file__).parents[1] / "results"
_QUIET = 1.0
"""Load average above which other programs use the machine."""


def main() -> None:
    """Measure as the options say; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(shape.name for shape in CPU)}")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each contender; the table has their medians")
    parser.add_argument("--threads", type=int, default=2, help="of each contender")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for table, plot and raw figures")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else [shape.name for shape in CPU]
    if unknown := set(only) - SHAPES.keys():
        parser.error(f"there is no shape {', '.join(sorted(unknown))}: there are {', '.join(SHAPES)}")
    if os.getloadavg()[0] > _QUIET:
        _say("warning", f"something else uses this machine (load {os.getloadavg()[0]:.1f}): figures will be low")
    options.out.mkdir(parents=True, exist_ok=True)
    stored = options.out / report.FIGURES
    figures: dict[str, Figures] = json.loads(stored.read_text()) if stored.exists() else {}
    command = f"python -m tests.benchmarks.trainer --threads {options.threads}"
    with tempfile.TemporaryDirectory() as folder:
        for name in only:
            about = {"machine": machine(), "date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": command}
            begun = time.monotonic()
            figures[name] = measure(SHAPES[name], options.rounds, options.threads, Path(folder), partial(_say, name))
            figures[name] |= {"about": about | {"took_s": round(time.monotonic() - begun)}}
            figures = {shape: figures[shape] for shape in SHAPES if shape in figures}
            report.write(figures, options.out)
    print((options.out / report.TABLE).read_text())


def _say(name: str, line: str) -> None:
    print(f"{name}: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
