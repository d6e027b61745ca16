"""`headrace lineage` on a real log: from versions to their data, from data to versions; and what has expired."""

import asyncio
import json

import pytest
from click.testing import CliRunner, Result

from headrace.deploy.cli import cli
from headrace.schemas.ids import uuid7
from headrace.schemas.records.step import Step
from headrace.schemas.topics import EVENTS, STEPS, TRAINING, TRAJECTORIES
from tests.trainer.feed import records
from tests.trainer.provenance.published_run import (
    Story,
    delete_before,
    publish_rejected,
    publish_run,
    quarantine,
    train,
)

pytestmark = pytest.mark.kafka

STEPS_TRAINED = 3


def lineage(kafka: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["lineage", *arguments, "--kafka", kafka])


def lineage_json(kafka: str, *arguments: str) -> dict:
    done = lineage(kafka, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def story(kafka, tmp_path_factory) -> Story:
    """Seven groups, of which six are trained in three steps."""
    made = asyncio.run(publish_run(kafka, "told", 2 * STEPS_TRAINED + 1))
    train(kafka, tmp_path_factory.mktemp("told"), "told", STEPS_TRAINED)
    return made


@pytest.fixture(scope="module")
def steps(kafka, story) -> list[Step]:
    return [step for _, step in asyncio.run(records(kafka, STEPS, "told")) if isinstance(step, Step)]


def trained(steps: list[Step]) -> dict[str, int]:
    """Returns the step that trained each trajectory."""
    return {name: step.step for step in steps for group in step.groups for name in group.trajectory_ids}


def test_versions_and_trajectories_refer_to_each_other(kafka, story, steps):
    made_by = trained(steps)
    assert len(made_by) == 2 * STEPS_TRAINED * 4
    for version in range(1, STEPS_TRAINED + 1):
        done = lineage(kafka, "--version", str(version), "--members", "--json")
        members = [json.loads(line) for line in done.stdout.splitlines()]
        assert {each["trajectory_id"]: each["step"] for each in members} == {
            name: step for name, step in made_by.items() if step <= version
        }
        assert all(each["tokens"] and each["tenant"].startswith("tenant-") for each in members)
    for name in [*made_by][::7]:
        trace = lineage_json(kafka, "--trajectory", name)
        assert (trace["fate"], trace["touched"]) == ("trained", list(range(made_by[name], STEPS_TRAINED + 1)))
        assert trace["events"]["state"] == "there"
        assert trace["rewards"][0]["record"]["trajectory_id"] == name
        assert trace["groups"][0]["record"]["group_id"] == trace["steps"][0]["group_id"]


def test_a_version_shows_the_shares_of_its_training_data(kafka, story, steps):
    found = lineage_json(kafka, "--version", "2")
    assert (found["ancestry"], found["descendants"]) == ([2, 1, 0], [3])
    tokens = sum(int(step.metrics["tokens_trained"]) for step in steps[:2])
    assert found["trained_on"] == {"tokens": tokens, "trajectories": 16, "groups": 4}
    for table in (*found["shares"].values(), *found["own_shares"].values()):
        assert sum(row["share"] for row in table) == pytest.approx(1.0)
    assert {row["key"] for row in found["shares"]["agent"]} == {"search", "checkout"}
    assert [row["tokens"] for row in found["steps"]] == [int(step.metrics["tokens_trained"]) for step in steps[:2]]
    assert found["missing"] == []
    page = lineage(kafka, "--version", "2").stdout
    assert "Version 2 of run told" in page
    assert "descendants   3 (1 version)" in page
    base = lineage(kafka, "--version", "0").stdout
    assert "nothing: it is the base model" in base


def test_an_event_is_traced_to_the_versions_it_is_in(kafka, story, steps):
    made_by = trained(steps)
    name = next(name for name, step in made_by.items() if step == 2)
    for event_id in story.events[name]:
        found = lineage_json(kafka, "--event", event_id)
        assert found["event"]["place"] in [[at.partition, at.offset] for at in story.places[name]]
        assert (found["trajectory_id"], found["touched"]) == (name, [2, 3])
    page = lineage(kafka, "--event", story.events[name][1]).stdout
    assert f"Trajectory {name}: trained in run told; in the weights of versions 2–3" in page
    assert "tool.called number 1" in page
    elsewhere = lineage(kafka, "--event", story.events[name][0], "--trajectory", "other")
    assert f"belongs to trajectory {name}, not to other" in elsewhere.output


def test_pending_and_rejected_trajectories_are_shown_as_such(kafka, story, steps):
    waiting = next(name for names in story.groups.values() for name in names if name not in trained(steps))
    assert lineage_json(kafka, "--trajectory", waiting)["fate"] == "untrained"

    main = next(iter(trained(steps)))
    asyncio.run(publish_rejected(kafka, "told", "sub-agent", parent=main))
    found = lineage_json(kafka, "--trajectory", "sub-agent")
    assert (found["fate"], found["touched"]) == ("rejected", [])
    assert found["rejections"][0]["record"]["reason"] == "frozen_role"
    assert (found["parent"]["trajectory_id"], found["parent"]["fate"]) == (main, "trained")
    assert "It worked for another" in lineage(kafka, "--trajectory", "sub-agent").stdout


def test_an_event_with_a_dead_letter_is_not_part_of_its_trajectory(kafka, story, steps):
    name = [*trained(steps)][1]
    asyncio.run(quarantine(kafka, story.places[name][1]))
    done = lineage(kafka, "--event", story.events[name][1])
    assert "the event is a dead letter (late) and not part of the trajectory" in done.stdout


def test_unknown_arguments_are_errors(kafka, story):
    assert "has no version 9: its newest version is 3" in lineage(kafka, "--version", "9").output
    unknown = lineage(kafka, "--trajectory", "nobody").output
    assert "The log has no trajectory, reward, step or rejection with the id 'nobody'" in unknown
    assert "no records of events have expired" in lineage(kafka, "--event", uuid7()).output
    for wrong in ([], ["--version", "1", "--event", "e"], ["--event", "e", "--members"]):
        assert lineage(kafka, *wrong).exit_code == 2


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_versions_and_trajectories_can_be_drawn(kafka, story, steps, tmp_path, suffix):
    for number, asked in enumerate((["--version", "3"], ["--trajectory", next(iter(trained(steps)))])):
        path = tmp_path / f"{number}.{suffix}"
        done = lineage(kafka, *asked, "--picture", str(path))
        assert done.exit_code == 0, done.output
        assert path.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_expired_records_are_reported_on_each_link(kafka, story, steps):
    """Last in the file, because it deletes records."""
    name, step = next(iter(trained(steps).items()))
    group = next(each for each in steps[step - 1].groups if name in each.trajectory_ids)
    place = group.trajectories[group.trajectory_ids.index(name)]
    delete_before(kafka, EVENTS, story.places[name][0].partition, story.places[name][0].offset + 1)
    assert lineage_json(kafka, "--trajectory", name)["events"]["state"] == "partly expired"
    lost = lineage(kafka, "--event", story.events[name][0])
    assert (lost.exit_code, "may have expired" in lost.output) == (1, True)
    asked = lineage(kafka, "--event", story.events[name][0], "--trajectory", name)
    assert f"Trajectory {name}: trained" in asked.stdout

    delete_before(kafka, TRAJECTORIES, place.partition, place.offset + 1)
    page = lineage(kafka, "--trajectory", name).stdout
    assert f"MISSING: trajectories {place.partition} begins at {place.offset + 1}" in page
    assert lineage_json(kafka, "--trajectory", name)["touched"] == list(range(step, STEPS_TRAINED + 1))
    version = lineage_json(kafka, "--version", "3")
    assert {(each["topic"], each["absence"]) for each in version["missing"]} == {("trajectories", "expired")}
    assert "(evidence gone)" in {row["key"] for row in version["shares"]["tenant"]}
    assert sum(row["share"] for row in version["shares"]["tenant"]) == pytest.approx(1.0)

    delete_before(kafka, TRAINING, group.group.partition, group.group.offset + 1)
    gone = lineage_json(kafka, "--trajectory", name)
    assert gone["groups"][0]["missing"]["absence"] == "expired"
    page = lineage(kafka, "--version", "3").stdout
    assert "expired: training" in page
    assert "but their source is unknown" in page
