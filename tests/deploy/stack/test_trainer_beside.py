"""A trainer beside a stack: settings that do not fit together are said before it waits for ever."""

from pathlib import Path

from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.processes.train import trainer_config
from headrace.deploy.stack.folder_run import remember_run
from headrace.deploy.stack.state import StackState, locked, write_state
from headrace.deploy.stack.trainer_beside import warnings_about


def warnings(data: Path, *assignments: str) -> list[str]:
    return warnings_about(trainer_config(load_settings(data=str(data), kafka="b:1"), None, assignments), data)


def test_without_a_stack_only_a_missing_model_is_said(tmp_path: Path) -> None:
    assert warnings(tmp_path, "run=mine", "store_url=s3://bucket/prefix") == []
    (said,) = warnings(tmp_path, "model_dir=/nowhere", "optimizer.learning_rate=1e-6")
    assert said == "model_dir /nowhere is not a Hugging Face model directory: it has no config.json."


def test_the_run_of_the_last_stack_is_compared(tmp_path: Path) -> None:
    remember_run(tmp_path, "default")
    assert warnings(tmp_path) == []
    (said,) = warnings(tmp_path, "run=mine")
    assert said.startswith(f"run is mine, but the last stack on {tmp_path} has the run default: ")
    assert said.endswith("Start it with `headrace up --run mine`.")


def test_run_and_store_of_a_running_stack_are_compared(tmp_path: Path) -> None:
    with locked(tmp_path):
        write_state(tmp_path, StackState(1, "mine", str(tmp_path), (tmp_path / "objects").as_uri(), True, {}))
        assert warnings(tmp_path, "run=mine") == []
        run, where = warnings(tmp_path, "run=other", "store_url=s3://bucket/prefix")
        assert "the stack that runs on" in run
        assert f"reads {(tmp_path / 'objects').as_uri()}: its engine would get no version" in where
        write_state(tmp_path, StackState(1, "mine", str(tmp_path), "s3://bucket/prefix", True, {}))
        assert warnings(tmp_path, "run=mine", "store_url=s3://bucket/prefix/") == []


def test_check_prints_warnings_as_comments(tmp_path: Path) -> None:
    remember_run(tmp_path, "default")
    shown = CliRunner().invoke(cli, ["train", "--check", "--kafka", "b:1", "--data", str(tmp_path), "--run", "mine"])
    assert shown.exit_code == 0
    assert "\n# Warning: run is mine, but the last stack" in shown.output
