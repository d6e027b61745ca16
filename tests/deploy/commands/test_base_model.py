"""``headrace base-model`` creates a complete model directory, bit-identically each time, and never overwrites one."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.agents.search import vocabulary as words
from headrace.deploy.cli import cli

FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def make(out: Path, *, seed: int = 0) -> Result:
    settings = ["--steps", "3", "--episodes", "40", "--threads", "1", "--seed", str(seed)]
    return CliRunner().invoke(cli, ["base-model", "--out", str(out), *settings])


def content(file: Path) -> dict[str, object]:
    """Returns the JSON of ``file`` without the version of the library that wrote it."""
    return {name: value for name, value in json.loads(file.read_text()).items() if name != "transformers_version"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("models") / "base"
    return out, make(out)


def test_it_writes_a_hugging_face_directory(made: tuple[Path, Result]) -> None:
    out, result = made
    assert result.exit_code == 0, result.output
    assert {file.name for file in out.iterdir()} == FILES
    assert json.loads((out / "config.json").read_text())["vocab_size"] == len(words.VOCABULARY)


def test_it_reports_progress_and_loss(made: tuple[Path, Result]) -> None:
    _, result = made
    assert "step     3/3" in result.output
    assert "held-out" in result.output
    assert "to go" in result.output


def test_the_seed_determines_the_bytes(made: tuple[Path, Result], tmp_path: Path) -> None:
    out, _ = made
    make(tmp_path / "same")
    make(tmp_path / "other", seed=1)
    weights = (out / "model.safetensors").read_bytes()
    assert (tmp_path / "same" / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != weights


def test_the_shipped_base_has_the_same_files_and_shape(made: tuple[Path, Result]) -> None:
    out, _ = made
    shipped = Path(words.__file__).with_name("base")
    assert {file.name for file in shipped.iterdir()} == FILES | {"README.md"}
    for name in FILES - {"model.safetensors"}:
        assert content(shipped / name) == content(out / name)


def test_a_folder_that_is_not_empty_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = make(tmp_path)
    assert result.exit_code != 0
    assert "not empty" in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
