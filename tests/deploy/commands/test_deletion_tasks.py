"""``headrace deletion-tasks`` writes verified tasks, and refuses what it cannot do before the work."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.agents.coder.deletion.tasks import DeletionTask
from headrace.deploy.cli import cli


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["deletion-tasks", *arguments])
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_tasks_are_written_with_counts_by_reason(tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    code, text = call("--out", str(out), "--module", "colorsys", "--per-module", "2")
    if "need the sandbox provider overlay" in text:
        pytest.skip(text)
    assert code == 0, text
    tasks = [DeletionTask.of_line(line) for line in out.read_text().splitlines()]
    assert f"{len(tasks)} tasks (kept {len(tasks)}" in text
    assert tasks
    assert all(task.module == "colorsys" and task.fails_without for task in tasks)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    out.write_text("mine\n")
    code, text = call("--out", str(out))
    assert code != 0
    assert "name a new file" in text
    assert out.read_text() == "mine\n"


def test_an_unknown_module_is_refused_with_a_choice(tmp_path: Path) -> None:
    code, text = call("--out", str(tmp_path / "tasks.jsonl"), "--module", "no_such_module")
    assert code != 0
    assert "graphlib" in text


def test_an_unknown_package_is_refused_with_a_choice(tmp_path: Path) -> None:
    code, text = call("--out", str(tmp_path / "tasks.jsonl"), "--package", "no-such-package")
    assert code != 0
    assert "choose from jsonpointer, more-itertools" in text


def test_a_source_distribution_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jsonpointer-3.0.0.tar.gz").write_bytes(b"another one")
    out = tmp_path / "tasks.jsonl"
    code, text = call("--out", str(out), "--package", "jsonpointer", "--sdists", str(tmp_path))
    assert code != 0
    assert "pinned is 2b2d729f" in text
    assert not out.exists()
