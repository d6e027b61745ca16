"""Reads a version's lineage: steps as a stream, and their records in portions. Memory does not grow with the run."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.step import Step
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import TRAINING, TRAJECTORIES, WEIGHTS
from headrace.trainer.admission.admission import place_of
from headrace.trainer.provenance.contributions import Contribution, contributions, labels_of
from headrace.trainer.provenance.evidence import MissingRecord, read_all, read_as
from headrace.trainer.provenance.log_reader import LogReader
from headrace.trainer.provenance.steps import steps_of, trajectory_places
from headrace.trainer.provenance.version_lineage import VersionLineage, open_lineage
from headrace.trainer.provenance.versions import VersionGraph, version_graph

PORTION = 256
"""Approximate number of trajectories fetched together: neighbouring steps are close in the log."""


async def read_graph(log: LogReader, run: str) -> VersionGraph:
    """Read the versions of ``run``."""
    found = [read_as(record, run, Weights) async for record in log.scan(WEIGHTS) if record.key == run.encode()]
    return version_graph([each for each in found if isinstance(each, Weights)], run)


async def read_lineage(
    steps: LogReader,
    records: LogReader,
    run: str,
    version: int,
    *,
    on_contribution: Callable[[Contribution], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> VersionLineage:
    """Read what ``version`` of ``run`` was trained on; ``on_contribution`` is called with each trajectory, ``progress``
    with the number of steps read and of all steps.

    Two readers are needed: ``steps`` is in the middle of a scan while ``records`` fetches. Raises ``KeyError`` if the
    log does not hold the version.
    """
    lineage = open_lineage(await read_graph(steps, run), run, version)
    wanted = set(lineage.ancestry) - {0}
    async for portion in _portions(steps, run, wanted):
        for step, given, missing in await _resolve(records, portion):
            lineage.add(step, given, missing)
            for each in given:
                on_contribution(each)
        progress(len(lineage.steps), len(wanted))
    return lineage


async def _portions(log: LogReader, run: str, versions: set[int]) -> AsyncIterator[list[Step]]:
    """Yield the steps that made ``versions``, in portions that name about ``PORTION`` trajectories."""
    portion: list[Step] = []
    size = 0
    async for step in steps_of(log, run):
        if isinstance(step, Step) and step.version in versions:
            portion.append(step)
            size += sum(len(group.trajectory_ids) for group in step.groups)
            if size >= PORTION:
                yield portion
                portion, size = [], 0
    if portion:
        yield portion


async def _resolve(
    log: LogReader, portion: Sequence[Step]
) -> list[tuple[Step, list[Contribution], list[MissingRecord]]]:
    """Returns each step with its contributions, and with the missing records that it names."""
    group_places = {place_of(group.group): group.group_id for step in portion for group in step.groups}
    places = trajectory_places(portion)
    found_groups, no_groups = await log.read_at(TRAINING, group_places)
    found, no_trajectories = await log.read_at(TRAJECTORIES, places)
    groups, bad_groups = read_all(found_groups, group_places, partial(read_as, model=TrainingGroup))
    labels, bad_trajectories = read_all(found, places, labels_of)
    lost = {
        (each.topic, each.partition, each.offset): each
        for each in (*no_groups, *bad_groups, *no_trajectories, *bad_trajectories)
    }
    resolved = []
    for step in portion:
        named = [(TRAINING.name, *place_of(group.group)) for group in step.groups]
        named += [(TRAJECTORIES.name, *place) for place in trajectory_places([step])]
        missing = [lost[place] for place in named if place in lost]
        resolved.append((step, list(contributions(step, groups, labels)), missing))
    return resolved
