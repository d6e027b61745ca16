"""A new loss takes three files: `sapo` is added to a copy of the tree, and passes the tests of any loss.

CONTRIBUTING describes it, and names the same files.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.newcomer.soft_gate import FILES, NEW_FILE, THE_TEST, add_loss
from tests.newcomer.tree import ROOT, copy_tree, run


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = copy_tree(tmp_path_factory.mktemp("tree"))
    (tree / THE_TEST).parent.mkdir(parents=True)
    shutil.copy(ROOT / THE_TEST, tree / THE_TEST)
    add_loss(tree)
    return tree


def test_contributing_names_its_files_and_its_test() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## A new loss")[2].partition("\n## ")[0]
    named = re.findall(r"^\| (?:`([\w/.]+\.py)`|new: \[\S+\]\(tests/newcomer/new_files/(\S+)\))", section, re.MULTILINE)
    assert {edited or new for edited, new in named} == FILES
    assert f"`{THE_TEST}`" in section


def test_it_passes_the_tests_of_any_loss(tree: Path) -> None:
    selected = ("-k", "sapo or unknown", str(tree / THE_TEST))
    done = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *selected)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sapo" not in (ROOT / THE_TEST).read_text()


@pytest.mark.nightly
def test_its_types_are_strict(tree: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tree)
    module = f"headrace.{NEW_FILE.removesuffix('.py').replace('/', '.')}"
    options = ("--config-file=pyproject.toml", f"--cache-dir={tree / 'cache'}", "--follow-imports=silent")
    done = run(tree, "-m", "mypy", *options, "-m", module)
    assert done.returncode == 0, done.stdout


def test_a_trainer_can_be_configured_with_it(tree: Path) -> None:
    settings = ("--set", "loss=sapo", "--set", "loss_settings.temperature_negative=1.1", "--set", "max_staleness=2")
    done = run(tree, "-m", "headrace.deploy.cli", "train", "--check", "--kafka", "localhost:9", *settings)
    assert "sapo" in done.stdout + done.stderr
    assert "is not known" not in done.stdout + done.stderr
