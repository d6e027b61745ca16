"""Feature deletion on the standard library: a function of a module is deleted, and CPython's own tests say what it did.

    task = DeletionTask("graphlib", "TopologicalSorter.done", source=…, tests=…, must_pass=(…), fails_without=(…))

A task is kept only if the reference passes twice with the same tests, the deletion makes some of them fail and leaves
others alone. The sandbox sees neither the original module nor its bytecode (``masked_paths``): both are readable on any
machine with Python. Sources are © Python Software Foundation, PSF licence.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from headrace.agents.coder.deletion.features import Feature, without
from headrace.agents.coder.deletion.installation import Installation
from headrace.agents.coder.deletion.suite import SuiteOutcome, SuiteResult, run_suite
from headrace.agents.sandbox.protocol import Limits, Provider

MEMORY_BYTES = 1 << 30


class Rejection(StrEnum):
    """Why a deletion is no task."""

    REFERENCE_FAILS = "reference_fails"
    NOT_REPEATABLE = "not_repeatable"
    NOT_TESTED = "not_tested"
    """Its tests pass without it."""
    BREAKS_EVERYTHING = "breaks_everything"
    """No test passes without it: the module cannot be loaded."""


@dataclass(frozen=True, slots=True)
class DeletionTask:
    """A module without one of its functions."""

    module: str
    feature: str
    """Name of what was deleted."""
    broken: str
    """Source without it."""
    tests: str
    """Source of the module's tests."""
    must_pass: tuple[str, ...]
    """Tests that pass with the original."""
    fails_without: tuple[str, ...]
    """Those of them that fail without the feature."""
    lines: int
    """Lines that were deleted."""

    @property
    def task_id(self) -> str:
        """Its id: ``coder-deletion-graphlib-TopologicalSorter.done``."""
        return f"coder-deletion-{self.module}-{self.feature}"

    def files(self) -> dict[str, bytes]:
        """Return the files that an attempt starts with."""
        return {f"{self.module}.py": self.broken.encode(), f"test_{self.module}.py": self.tests.encode()}

    def line(self) -> str:
        """Return the task as a line of JSON."""
        return json.dumps({"task_id": self.task_id, **asdict(self)}, sort_keys=True)

    @classmethod
    def of_line(cls, line: str) -> "DeletionTask":
        """Return the task of a line. Raises ``ValueError`` if it is none."""
        try:
            value: Mapping[str, Any] = json.loads(line)
            return cls(
                value["module"],
                value["feature"],
                value["broken"],
                value["tests"],
                tuple(value["must_pass"]),
                tuple(value["fails_without"]),
                value["lines"],
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"a line is no deletion task: {error!r} is missing or of another type") from error


async def verified(
    provider: Provider, installed: Installation, feature: Feature, reference: SuiteResult | None = None
) -> DeletionTask | Rejection:
    """Return the task of deleting ``feature``, or why it is none. ``reference``: an earlier run on the original."""
    reference = reference or await suite_of(provider, installed, installed.source)
    if reference.outcome is not SuiteOutcome.RAN or not reference.passed:
        return Rejection.REFERENCE_FAILS
    again = await suite_of(provider, installed, installed.source)
    if again != reference:
        return Rejection.NOT_REPEATABLE
    broken = without(installed.source, feature)
    left = await suite_of(provider, installed, broken)
    if reference.passed <= left.passed:
        return Rejection.NOT_TESTED
    if not left.passed:
        return Rejection.BREAKS_EVERYTHING
    return DeletionTask(
        installed.module,
        feature.name,
        broken,
        installed.tests,
        tuple(sorted(reference.passed)),
        tuple(sorted(reference.passed - left.passed)),
        feature.lines,
    )


async def suite_of(provider: Provider, installed: Installation, source: str) -> SuiteResult:
    """Return the result of the module's tests on ``source``, in a sandbox of its own."""
    files = {f"{installed.module}.py": source.encode(), f"test_{installed.module}.py": installed.tests.encode()}
    sandbox = await provider.start(files, limits_of(installed))
    try:
        return await run_suite(sandbox, installed.module, installed.python)
    finally:
        await sandbox.stop()


def limits_of(installed: Installation) -> Limits:
    """Return the limits of a sandbox for attempts: the original is masked."""
    return replace(Limits(), masked=installed.masked, memory_bytes=MEMORY_BYTES, wall_s=120.0)


async def verdict(
    provider: Provider, task: DeletionTask, installed: Installation, written: Mapping[str, bytes]
) -> tuple[float, SuiteOutcome]:
    """Return 1.0 if the files that an attempt has ``written`` restore the feature, else 0.0, and how the tests ended.

    The verdict is made in a fresh sandbox with the task's own tests, so edited ones count for nothing, and every test
    that passes with the original has to pass. The candidate's code shares the process with the tests: what it forges
    there is caught by a nonce, a canary and the names of the tests, which is best effort.
    """
    files = {**task.files(), **written, f"test_{task.module}.py": task.tests.encode()}
    sandbox = await provider.start(files, limits_of(installed))
    try:
        result = await run_suite(sandbox, task.module, installed.python)
    finally:
        await sandbox.stop()
    return float(result.passed >= set(task.must_pass) and bool(task.must_pass)), result.outcome


def chosen(every: Sequence[Feature], count: int) -> list[Feature]:
    """Return ``count`` of the features, spread over the file; all if there are fewer."""
    if count >= len(every):
        return list(every)
    return [every[place * len(every) // count] for place in range(count)]
