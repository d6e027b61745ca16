"""The loss `sapo` as a newcomer would add it: a new file, which is in `new_files/`, and lines in two others."""

import shutil
from pathlib import Path

from tests.newcomer.memory_written import Edit, apply

NEW_FILE = "trainer/losses/sapo.py"

EDITS = (
    Edit(
        "trainer/losses/registry.py",
        "from headrace.trainer.losses.settings",
        "from headrace.trainer.losses.sapo import SAPO\n",
    ),
    Edit("trainer/losses/registry.py", '    "decoupled"', '    "sapo": SAPO,\n'),
    Edit(
        "trainer/losses/settings.py",
        "    normaliser: Normaliser",
        '''    temperature_positive: float | None = None
    """τ of sapo for positive advantages."""
    temperature_negative: float | None = None
    """τ of sapo for negative advantages."""
''',
    ),
)
"""Its name, and its bounds as settings."""

FILES = {NEW_FILE, *(edit.path for edit in EDITS)}
"""Every file that is written."""

THE_TEST = "tests/trainer/losses/test_registry.py"
"""The test to which the line of the paper's settings, and its value by hand, are added."""

TEST_EDITS = (
    Edit(
        THE_TEST,
        '        "decoupled": (',
        '        "sapo": (Normaliser.SEQUENCE_MEAN, AdvantageScale.GROUP_STD),\n',
    ),
    Edit(
        THE_TEST,
        "def test_decoupled_by_hand",
        """def test_sapo_by_hand():
    # f(1) = 2/τ with slope 1; at ρ = 1 + ln 3 and τ = 1: f = 4 · 3/4 with slope 4 · 3/16
    found = evaluate("sapo", [[at_ratio(1.0), at_ratio(1 + math.log(3))]], temperature_positive=1.0)
    assert found.loss == pytest.approx(-(2 + 3) / 2)
    assert found.gradient == pytest.approx([-1 / 2, -(1 + math.log(3)) * 0.75 / 2])


""",
    ),
)


def add_loss(root: Path) -> None:
    """Add the loss, and its tests, to the tree at ``root``."""
    shutil.copy(Path(__file__).parent / "new_files" / NEW_FILE, root / NEW_FILE)
    apply((*EDITS, *TEST_EDITS), root)
