"""The processor `histogram` as a newcomer would add it: two new files, and lines in two others.

It reads `rewards`, keeps a histogram of each task's rewards in its state, and writes it to a topic of its own. The new
files are in `new_files/`, under the paths that they get.
"""

import shutil
from pathlib import Path

from tests.newcomer.memory_written import Edit, apply

NEW_FILES = ("schemas/records/task_rewards.py", "streams/processors/histogram.py")
"""The record, and the operator that writes it."""

EDITS = (
    Edit(
        "schemas/topics.py",
        "from headrace.schemas.records.trajectory",
        "from headrace.schemas.records.task_rewards import TaskRewards\n",
    ),
    Edit(
        "schemas/topics.py",
        "TRAINING = Topic(",
        """TASK_REWARDS = Topic(
    "task-rewards",
    "partition of rewards, and task id",
    (TaskRewards,),
    PARTITIONS,
    "Histograms of each task's rewards.",
    compacted=True,
)
""",
    ),
    Edit("schemas/topics.py", "    TRAINING,", "    TASK_REWARDS,\n"),
    Edit("streams/topology.py", "    TRAINING,", "    TASK_REWARDS,\n"),
    Edit(
        "streams/topology.py",
        "from headrace.streams.processors.score",
        "from headrace.streams.processors.histogram import add, restore_histogram\n",
    ),
    # The line before begins a processor: this one ends, and the next begins.
    Edit(
        "streams/topology.py",
        '        "group",',
        """        "histogram",
        reads=(REWARDS,),
        run=add,
        writes=(TASK_REWARDS,),
        about="Rewards of one task become a histogram, which every further reward updates.",
        restore=restore_histogram,
        state="The histogram of each task that had a reward lately.",
    ),
    Processor(
""",
    ),
)
"""The topic, and the processor in the topology."""

FILES = {*NEW_FILES, *(edit.path for edit in EDITS)}
"""Every file that is written."""


def add_processor(root: Path) -> None:
    """Add the processor to the tree at ``root``."""
    for path in NEW_FILES:
        shutil.copy(Path(__file__).parent / "new_files" / path, root / path)
    apply(EDITS, root)
