"""`headrace show` on a real log: text where the run's trainer published its tokenizer, or where one is given."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.deploy.cli import cli
from headrace.schemas.records.step import Step
from headrace.schemas.topics import STEPS
from tests.trainer.feed import records
from tests.trainer.provenance.published_run import Story, publish_run, train

pytestmark = pytest.mark.kafka

TOKENIZER = Path(__file__).parents[3] / "agents/search/base/tokenizer.json"


def show(kafka: str, *arguments: str, data: Path) -> Result:
    return CliRunner().invoke(cli, ["show", *arguments, "--kafka", kafka, "--data", str(data)])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The data folder, whose object store holds what the trainer published."""
    return tmp_path_factory.mktemp("shown")


@pytest.fixture(scope="module")
def story(kafka, data) -> Story:
    """Three groups, of which two are trained."""
    made = asyncio.run(publish_run(kafka, "shown", 3))
    (data / "base").mkdir()
    shutil.copy(TOKENIZER, data / "base")
    train(kafka, data, "shown", 1)
    return made


@pytest.fixture(scope="module")
def trained(kafka, story) -> str:
    """A trajectory that was trained on."""
    (step,) = [step for _, step in asyncio.run(records(kafka, STEPS, "shown")) if isinstance(step, Step)]
    return step.groups[0].trajectory_ids[0]


def test_a_trajectory_is_shown_as_text_by_the_published_tokenizer(kafka, data, trained):
    done = show(kafka, trained, data=data)
    assert done.exit_code == 0, done.output
    words = json.loads(TOKENIZER.read_text())["model"]["vocab"]
    said = [line.split() for line in done.stdout.splitlines() if re.match(r" {4}\S", line)]
    assert said
    assert {word for line in said for word in line} <= words.keys() | {"·"}
    assert f"Trajectory {trained}: trained in run shown" in done.stdout
    assert f"  → {trained}  reward" in done.stdout
    assert done.stderr == ""


def test_a_given_tokenizer_is_used_instead_and_ids_can_be_printed(kafka, data, trained, tmp_path):
    shutil.copy(TOKENIZER, tmp_path)
    text = show(kafka, trained, "--json", data=data)
    given = show(kafka, trained, "--json", "--tokenizer", str(tmp_path), data=tmp_path / "elsewhere")
    assert json.loads(given.stdout) == json.loads(text.stdout)
    ids = show(kafka, trained, "--ids", data=data)
    assert [line for line in ids.stdout.splitlines() if re.match(r" {4}\d", line)]


def test_what_is_missing_is_named(kafka, data, story, trained, tmp_path):
    unknown = show(kafka, "nobody", data=data).output
    assert "has no trajectory with the id 'nobody'" in unknown
    assert "`headrace tail events --trajectory nobody` shows" in unknown
    assert "cannot be read (No such file" in show(kafka, trained, "--tokenizer", str(tmp_path), data=data).output
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer cannot be loaded" in show(kafka, trained, "--tokenizer", str(tmp_path), data=data).output
    elsewhere = show(kafka, trained, data=tmp_path / "empty")
    assert elsewhere.exit_code == 0
    assert "tokenizer is not known" in elsewhere.stderr


def test_a_tokenizer_that_was_changed_in_the_object_store_is_refused(kafka, data, trained):
    (stored,) = (data / "objects/tokenizers").glob("*.json")
    original = stored.read_bytes()
    try:
        stored.write_bytes(original.replace(b"search", b"forged", 1))
        done = show(kafka, trained, data=data)
        assert done.exit_code != 0
        assert "has sha256" in done.output
        assert "--tokenizer" in done.output
    finally:
        stored.write_bytes(original)
