"""The text of a rebuilt step and of a lineage: all differences and gaps are described."""

import random
from dataclasses import replace

import pytest

from headrace.deploy.provenance import rebuilt as rebuilt_page
from headrace.deploy.provenance import trace_page, version_page
from headrace.deploy.provenance.picture import age_colours
from headrace.deploy.provenance.trace_boxes import LINES, WIDTH, rows
from headrace.schemas.records.step import BatchRecipe
from headrace.trainer.provenance.contributions import TrajectoryLabels, contributions
from headrace.trainer.provenance.evidence import Bounds, Found, absent
from headrace.trainer.provenance.find import EventSearch
from headrace.trainer.provenance.rebuild import StepRecords, rebuild
from headrace.trainer.provenance.trace import EventFound, Trace, trained_in
from headrace.trainer.provenance.version_lineage import open_lineage
from headrace.trainer.provenance.versions import version_graph
from tests.streams.attempts import attempt
from tests.trainer.provenance.history import History


@pytest.fixture
def history():
    made, rng = History(), random.Random(9)
    for _ in range(5):
        made.train(rng, agent=rng.choice(["search", "checkout"]), recipe=BatchRecipe(advantage_scale="group_std"))
    return made


def rebuilt(history, step):
    return rebuild(step, StepRecords(history.groups, history.trajectories))


def test_a_difference_lists_differing_and_equal_arrays(history):
    step = history.steps[0].model_copy(update={"recipe": BatchRecipe()})
    page = "\n".join(rebuilt_page.page(rebuilt(history, step)))
    assert "DIFFERS" in page
    assert "advantages (equal: token_ids, cu_seqlens" in page
    assert step.data_sha256 in page
    old = step.model_copy(update={"array_sha256": {}})
    assert "unknown: the step is from a release" in "\n".join(rebuilt_page.page(rebuilt(history, old)))
    forged = history.steps[0].model_copy(update={"data_sha256": "0" * 64})
    assert "the step's own hash was changed" in "\n".join(rebuilt_page.page(rebuilt(history, forged)))


def test_missing_records_are_summarised_by_partition(history):
    step = history.steps[0]
    lost = [
        absent("trajectories", (place.partition, place.offset), name, Bounds(9_000, 9_001))
        for group in step.groups
        for name, place in zip(group.trajectory_ids, group.trajectories, strict=True)
    ]
    page = rebuilt_page.page(rebuild(step, StepRecords(history.groups, {}, lost)))
    assert "CANNOT BE REBUILT" in page[0]
    lines = [line for line in page if "begins at 9000: the record has expired" in line]
    assert len(lines) == len({each.partition for each in lost})
    assert "CANNOT BE REBUILT: trajectories" in rebuilt_page.line(rebuild(step, StepRecords(history.groups, {}, lost)))


def lineage_of(history, version, missing=()):
    lineage = open_lineage(version_graph(history.weights, history.run), history.run, version)
    labels = {
        place: TrajectoryLabels.model_validate(each, from_attributes=True)
        for place, each in history.trajectories.items()
    }
    for step in history.steps[:version]:
        lineage.add(step, list(contributions(step, history.groups, labels)), missing)
    return lineage


def test_a_lineage_shows_the_top_values_and_counts_the_rest(history):
    page = version_page.page(lineage_of(history, 4), top=1)
    assert "  trained from  3, whose ancestors are 0–2" in page
    assert any("3 earlier steps" in line for line in page)
    assert any("others" in line for line in page)
    gone = version_page.page(lineage_of(history, 4, [absent("trajectories", (1, 2), "t", Bounds(5, 9))]), top=5)
    assert any("4 records of trajectories expired: trajectories 1 begins at 5" in line for line in gone)


def test_an_age_has_one_colour_in_the_whole_picture(history):
    lineage = lineage_of(history, 4)
    for row, ages in zip(lineage.steps, ({"0": 5}, {"3": 5, "1": 9}, {"12": 1}), strict=False):
        row.ages.clear()
        row.ages.update(ages)
    for row in lineage.steps[3:]:
        row.ages.clear()
    colours = age_colours(lineage)
    assert list(colours) == ["0", "1", "3", "12"]
    assert len(set(colours.values())) == 4


def test_the_text_of_a_trace_fits_its_boxes(history):
    step = history.steps[1]
    name = step.groups[0].trajectory_ids[0]
    place = (step.groups[0].trajectories[0].partition, step.groups[0].trajectories[0].offset)
    trace = Trace(name, EventFound("e", "headrace.tool.called.v1", name, 1, 0, (0, 7)))
    trace.trajectory = absent("trajectories", place, name, Bounds(10_000, 10_001))
    trained = trained_in(Found((0, 1), step), name, version_graph(history.weights, "run"))
    assert trained is not None
    trace.steps = [trained]
    trace.parent = Trace("above")
    first, second = (way.boxes for way in rows(trace))
    assert [box.title for box in first] == ["event", "trajectory", "step", "versions"]
    assert [box.title for box in first if box.is_missing] == ["trajectory"]
    assert [box.title for box in second] == ["pending"]
    assert all(len(line) <= WIDTH and len(box.lines) <= LINES for box in (*first, *second) for line in box.lines)
    page = trace_page.page(trace)
    assert "in the weights of versions 2–5" in page[0]
    assert any("MISSING: trajectories" in line for line in page)


def test_a_continuation_and_a_sub_agent_name_their_parent():
    said = {}
    for turn in (None, 2):
        made = attempt("below")
        start = made.started.model_copy(update={"parent_trajectory_id": "above", "fork_turn": turn})
        found = Found((0, 1), made.model_copy(update={"started": start}))
        said[turn] = trace_page.page(Trace("below", trajectory=found, parent=Trace("above")))
    assert "It continues another trajectory after its model call 2:" in said[2]
    assert any(line.startswith("It worked for another trajectory") for line in said[None])


def test_a_missing_event_may_have_expired():
    whole = EventSearch(None, {0: Bounds(0, 9)}, 1_700_000_000_000)
    assert (
        "and no records of events have expired. Its id was created at 2023-11-14 22:13:20 UTC."
        in trace_page.not_found("e", whole)
    )
    cut = replace(whole, bounds={0: Bounds(0, 9), 2: Bounds(500, 900)}, time_ms=None)
    assert "The first offsets of the topic are 2:500: the event may have expired" in trace_page.not_found("e", cut)
