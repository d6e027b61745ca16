"""A new event type takes the files that carry information and no others: `memory.written`, added to a copy of the tree.

CONTRIBUTING describes it, and names the same files.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.newcomer.memory_written import EDITS, THE_TYPE, WHAT_MYPY_ASKS_FOR, apply
from tests.newcomer.tree import ROOT, copy_tree, run


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return copy_tree(tmp_path)


def test_mypy_names_every_missing_place(tree: Path) -> None:
    apply(THE_TYPE, tree)
    # A run over everything takes minutes: these files alone, and for pydantic a class that is not Any.
    stub = tree / "src" / "pydantic.pyi"
    stub.write_text("class BaseModel: ...\ndef __getattr__(name: str) -> object: ...\n")
    rooms = ("schemas/model.py", "schemas/events.py", "streams/assembly/turns.py", "deploy/tail/sentence.py")
    files = [str(stub), *(f"src/headrace/{path}" for path in rooms)]
    options = ("--follow-imports=skip", "--explicit-package-bases", "--config-file=", "--python-version=3.11")
    found = run(tree, "-m", "mypy", *options, f"--cache-dir={tree / 'cache'}", *files).stdout
    forgotten = re.findall(r'headrace/(\S+?):\d+: error: Argument 1 to "assert_never" has .*"MemoryWritten"', found)
    assert set(forgotten) == {edit.path for edit in WHAT_MYPY_ASKS_FOR}, found


def test_a_new_type_goes_from_the_sdk_to_its_row_and_its_line(tree: Path) -> None:
    apply(EDITS, tree)
    done = run(tree, str(ROOT / "tests/newcomer/new_event_type.py"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    ((topic, trajectory),) = found["sent"]
    assert topic == "trajectories"
    assert (trajectory["events"], trajectory["unreadable"], len(trajectory["turns"])) == (4, [], 1)
    assert found["row"] == {
        "type": "headrace.memory.written.v1", "trajectory_id": "t-1", "seq": 2,
        "payload": '{"masked":{},"key":"ada","text":"Works at the mill."}',
    }  # fmt: skip
    assert found["line"] == "ada Works at the mill."
    # The C++ does not know it: Python did its part, and it was counted.
    module = found["module"]
    assert (found["fallbacks"], found["lag"]) == ((1, ["headrace.memory.written.v1"]) if module else (0, []))


def test_published_files_are_written_by_two_commands(tree: Path) -> None:
    apply(EDITS, tree)
    for command in (("schemas", "--write", "schemas/snapshots"), ("asyncapi", "--write", "schemas/asyncapi.json")):
        done = run(tree, "-m", "headrace.deploy.cli", *command)
        assert done.returncode == 0, done.stderr
    assert (tree / "schemas/snapshots/headrace.memory.written.v1.json").exists()
    assert (
        "headrace.memory.written.v1"
        in json.loads((tree / "schemas/asyncapi.json").read_text())["components"]["messages"]
    )


def test_contributing_names_these_files_and_no_others() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## A new event type")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w/.]+\.py)`", section, re.MULTILINE)) == {edit.path for edit in EDITS}
