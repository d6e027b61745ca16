"""A contender in a separate process.

    python -m tests.benchmarks.trainer.worker CONTENDER SHAPE MODEL_DIR DIVISION

``DIVISION`` is what the contender divides a batch by: tokens a pass, or sequences a micro-batch.
"""

import os
import sys
from pathlib import Path

import torch

from tests.benchmarks.trainer.contenders import CONTENDERS
from tests.benchmarks.trainer.shapes import SHAPES
from tests.benchmarks.trainer.turns import Turns


def main() -> None:
    """Take steps until the commands end."""
    contender, name, model_dir, division = sys.argv[1:]
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the reports
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    shape = SHAPES[name]
    CONTENDERS[contender](Turns(sys.stdin, reports), shape, shape.rollouts(), Path(model_dir), int(division))


if __name__ == "__main__":
    main()
