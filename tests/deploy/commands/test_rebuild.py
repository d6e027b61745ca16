"""`headrace rebuild` on a real log: batches that a trainer trained are rebuilt, and missing records reported."""

import asyncio
import json

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file

from headrace.deploy.cli import cli
from headrace.schemas.records.step import Step
from headrace.schemas.topics import STEPS, TRAINING, TRAJECTORIES
from tests.streams.archiving.archived import archive_now
from tests.trainer.feed import feed_groups, records
from tests.trainer.provenance.published_run import delete_before, train

pytestmark = pytest.mark.kafka


def rebuild(kafka: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["rebuild", *arguments, "--kafka", kafka])


@pytest.fixture(scope="module")
def steps(kafka, tmp_path_factory) -> dict[str, list[Step]]:
    """Two runs: a minimal one, and one with every setting that affects a batch."""
    asyncio.run(feed_groups(kafka, list("abcd"), run="plain"))
    asyncio.run(feed_groups(kafka, list("efghij"), run="shaped", size=5, partition=None))
    train(kafka, tmp_path_factory.mktemp("plain"), "plain", 2)
    shaping = {"loss": "grpo", "shuffle_advantages": True, "substeps": 2, "seed": 11}
    train(kafka, tmp_path_factory.mktemp("shaped"), "shaped", 3, **shaping)
    return {
        run: [step for _, step in asyncio.run(records(kafka, STEPS, run)) if isinstance(step, Step)]
        for run in ("plain", "shaped")
    }


def test_every_step_is_rebuilt_bit_identically(kafka, steps):
    for run, trained in steps.items():
        done = rebuild(kafka, "all", "--run", run, "--json")
        assert done.exit_code == 0, done.output
        shown = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(each["step"], each["verdict"]) for each in shown] == [(step.step, "matches") for step in trained]
        assert [each["rebuilt_sha256"] for each in shown] == [step.data_sha256 for step in trained]


def test_a_step_shows_its_recipe(kafka, steps):
    done = rebuild(kafka, "2", "--run", "shaped")
    assert done.exit_code == 0, done.output
    assert "Step 2 of run shaped, which made version 2: matches" in done.stdout
    assert "advantages divided by group_std, shuffled by seed 11" in done.stdout
    assert steps["shaped"][1].data_sha256 in done.stdout


def test_the_batch_can_be_written_to_a_file(kafka, steps, tmp_path):
    path = tmp_path / "batch.safetensors"
    done = rebuild(kafka, "1", "--run", "shaped", "--write", str(path))
    assert done.exit_code == 0, done.output
    arrays, shown = load_file(path), json.loads((tmp_path / "batch.json").read_text())
    assert len(arrays["targets"]) == steps["shaped"][0].metrics["tokens_trained"]
    assert shown["data_sha256"] == steps["shaped"][0].data_sha256
    # Equal rewards 0 … 4 in each group of five: the sample deviation is that of 0 … 4.
    assert np.abs(arrays["advantages"]).max() == pytest.approx(2 / np.std(range(5), ddof=1), rel=1e-5)


def test_unknown_arguments_are_errors(kafka, steps):
    several = rebuild(kafka, "1")
    assert (several.exit_code, "plain, shaped" in several.output) == (1, True)
    unknown = rebuild(kafka, "1", "--run", "none")
    assert "The log has no run 'none'" in unknown.output
    beyond = rebuild(kafka, "9", "--run", "plain")
    assert "Run 'plain' has no step 9: its newest step is 2." in beyond.output
    for wrong in ("0", "3-1", "x"):
        assert rebuild(kafka, wrong, "--run", "plain").exit_code == 2


def test_expired_records_are_reported_or_read_from_the_archive(kafka, steps, tmp_path):
    """Last in the file, because it deletes records."""
    asyncio.run(archive_now(kafka, tmp_path))
    step = steps["plain"][1]
    reference = next(each for group in step.groups for each in group.trajectories if each.partition == 1)
    delete_before(kafka, TRAJECTORIES, 1, reference.offset + 1)
    done = rebuild(kafka, "2", "--run", "plain")
    assert done.exit_code == 3, done.output
    assert "CANNOT BE REBUILT" in done.stdout
    assert f"trajectories 1 begins at {reference.offset + 1}: the record has expired" in done.stdout

    group = steps["plain"][0].groups[0].group
    delete_before(kafka, TRAINING, group.partition, group.offset + 1)
    done = rebuild(kafka, "all", "--run", "plain", "--json")
    assert done.exit_code == 3
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert {each["topic"] for each in first["missing"]} == {"training", "trajectories"}
    assert {each["topic"] for each in second["missing"]} == {"trajectories"}
    assert {each["absence"] for each in first["missing"] + second["missing"]} == {"expired"}
    refused = rebuild(kafka, "1", "--run", "plain", "--write", "nothing.safetensors")
    assert (refused.exit_code, "nothing.safetensors is not written" in refused.output) == (3, True)

    delete_before(kafka, STEPS, 0, -1)  # all
    assert "has no step 1" in rebuild(kafka, "1", "--run", "plain").output
    done = rebuild(kafka, "all", "--run", "plain", "--json", "--archive", tmp_path.as_uri())
    assert done.exit_code == 0, done.output
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["step"], each["verdict"]) for each in shown] == [(1, "matches"), (2, "matches")]
    wrong = rebuild(kafka, "1", "--run", "plain", "--archive", "/data")
    assert (wrong.exit_code, "none of these forms" in wrong.output) == (1, True)
