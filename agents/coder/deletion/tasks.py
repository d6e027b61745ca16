"""Feature deletion: a function of a module is deleted, and the module's own tests say what it did.

    DeletionTask("stdlib", "graphlib", "TopologicalSorter.done", broken=…, tests=…, must_pass=(…), fails_without=(…), …)

A task is kept only if the reference passes twice with the same tests, the deletion makes some of them fail and leaves
others alone. The sandbox sees neither the original module nor its bytecode nor other copies of it
(``Interpreter.masked``): a module of the standard library is readable on any machine with Python. Its sources are
© Python Software Foundation, PSF licence; those of packages have the licences that ``packages.py`` states.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib import import_module
from operator import attrgetter
from typing import Any

from headrace.agents.coder.deletion.features import Feature, without
from headrace.agents.coder.deletion.installation import (
    STANDARD_LIBRARY,
    Installation,
    Interpreter,
    library_interpreter,
    module_of,
    package_interpreter,
)
from headrace.agents.coder.deletion.packages import package_of
from headrace.agents.coder.deletion.suite import SuiteOutcome, SuiteResult, run_suite
from headrace.agents.sandbox.protocol import Limits, Provider, TooLarge

MEMORY_BYTES = 1 << 30


class Rejection(StrEnum):
    """Why a deletion is no task."""

    REFERENCE_FAILS = "reference_fails"
    NOT_REPEATABLE = "not_repeatable"
    NOT_TESTED = "not_tested"
    """Its tests pass without it."""
    BREAKS_EVERYTHING = "breaks_everything"
    """No test passes without it: the module cannot be loaded."""
    IS_IN_C = "is_in_c"
    """The interpreter has it once more, in C: an attempt could import that instead of writing it."""


@dataclass(frozen=True, slots=True)
class DeletionTask:
    """A module without one of its functions."""

    origin: str
    """``stdlib``, or name and version of a package: ``jsonpointer==3.0.0``."""
    module: str
    """Name by which the module is imported."""
    feature: str
    """Name of what was deleted."""
    path: str
    """The module's file."""
    broken: str
    """Source without the feature."""
    tests_path: str
    """File of the module's tests."""
    tests: str
    """Source of the module's tests."""
    others: Mapping[str, str]
    """Other files by path."""
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

    @property
    def tests_module(self) -> str:
        """Name by which the tests are imported: ``tests.test_more``."""
        return module_of(self.tests_path)

    def files(self) -> dict[str, bytes]:
        """Return the files that an attempt starts with."""
        texts = {**self.others, self.path: self.broken, self.tests_path: self.tests}
        return {path: text.encode() for path, text in texts.items()}

    def line(self) -> str:
        """Return the task as a line of JSON."""
        return json.dumps({"task_id": self.task_id, **asdict(self)}, sort_keys=True)

    @classmethod
    def of_line(cls, line: str) -> "DeletionTask":
        """Return the task of a line. Raises ``ValueError`` if it is none."""
        try:
            value: Mapping[str, Any] = json.loads(line)
            names = ("origin", "module", "feature", "path", "broken", "tests_path", "tests")
            texts: dict[str, Any] = {name: value[name] for name in names}
            if wrong := [name for name, text in texts.items() if not isinstance(text, str)]:
                raise TypeError(", ".join(wrong))
            return cls(
                **texts,
                others={str(path): str(text) for path, text in value["others"].items()},
                must_pass=tuple(value["must_pass"]),
                fails_without=tuple(value["fails_without"]),
                lines=int(value["lines"]),
            )
        except json.JSONDecodeError as error:
            raise ValueError(f"a line is no deletion task: it is no JSON: {error}") from error
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"a line is no deletion task: {error!r} is missing or of another type") from error


async def verified(
    provider: Provider, installed: Installation, feature: Feature, reference: SuiteResult | None = None
) -> DeletionTask | Rejection:
    """Return the task of deleting ``feature``, or why it is none. ``reference``: an earlier run on the original."""
    if installed.origin == STANDARD_LIBRARY and is_in_c(installed.module, feature.name):
        return Rejection.IS_IN_C
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
        origin=installed.origin,
        module=installed.module,
        feature=feature.name,
        path=installed.path,
        broken=broken,
        tests_path=installed.tests_path,
        tests=installed.tests,
        others=installed.others,
        must_pass=tuple(sorted(reference.passed)),
        fails_without=tuple(sorted(reference.passed - left.passed)),
        lines=feature.lines,
    )


def is_in_c(module: str, name: str) -> bool:
    """Return whether the extension module of ``module`` of the standard library has ``name``, a function or method:
    ``_bisect`` has ``insort_left``. Such a module is part of the interpreter, so that it cannot be masked."""
    try:
        found = attrgetter(name)(import_module(f"_{module}"))
    except (ImportError, AttributeError):
        return False
    return found is not getattr(object, name.rpartition(".")[2], None)  # a class in C inherits ``__init__``


async def suite_of(provider: Provider, installed: Installation, source: str) -> SuiteResult:
    """Return the result of the module's tests on ``source``, in a sandbox of its own."""
    texts = {**installed.others, installed.path: source, installed.tests_path: installed.tests}
    files = {path: text.encode() for path, text in texts.items()}
    sandbox = await provider.start(files, limits_of(installed.interpreter))
    try:
        tests = module_of(installed.tests_path)
        return await run_suite(sandbox, installed.module, tests, installed.interpreter.python)
    finally:
        await sandbox.stop()


def limits_of(interpreter: Interpreter) -> Limits:
    """Return the limits of a sandbox for attempts: the original is masked."""
    return replace(Limits(), masked=interpreter.masked, memory_bytes=MEMORY_BYTES, wall_s=120.0)


def interpreter_of(task: DeletionTask) -> Interpreter:
    """Return what runs the tests of ``task`` on this machine. Raises ``NoSuchModule`` and ``PackageUnusable``."""
    if task.origin == STANDARD_LIBRARY:
        return library_interpreter(task.module)
    return package_interpreter(package_of(task.origin).imports, task.broken)


def interpreters_of(tasks: Sequence[DeletionTask]) -> dict[str, Interpreter]:
    """Return what runs the tests of each of ``tasks``, by id. Raises as :func:`interpreter_of` does.

    The machine is searched once for each module, not for each task: what has a copy of a module has one of the
    functions that its first task leaves.
    """
    by_module: dict[tuple[str, str], Interpreter] = {}
    for task in tasks:
        if (task.origin, task.module) not in by_module:
            by_module[task.origin, task.module] = interpreter_of(task)
    return {task.task_id: by_module[task.origin, task.module] for task in tasks}


async def verdict(
    provider: Provider, task: DeletionTask, interpreter: Interpreter, written: Mapping[str, bytes]
) -> tuple[float, SuiteOutcome]:
    """Return 1.0 if the files that an attempt has ``written`` restore the feature, else 0.0, and how the tests ended.

    The verdict is made in a fresh sandbox with the task's own tests. Of what was written there is nothing that Python
    could load in their place (:func:`replaces_tests`), and every test that passes with the original has to pass. The
    candidate's code shares the process with the tests: what it forges there is caught by a nonce, a canary and the
    names of the tests, which is best effort.
    """
    given = task.files()
    own = {
        path: content
        for path, content in written.items()
        if not replaces_tests(path, task.tests_path) and not _collides(path, given)
    }
    files = {**given, **own, task.tests_path: task.tests.encode()}
    try:
        sandbox = await provider.start(files, limits_of(interpreter))
    except TooLarge:  # code of the candidate made its files as large as its sandbox allowed
        return 0.0, SuiteOutcome.NO_REPORT
    try:
        result = await run_suite(sandbox, task.module, task.tests_module, interpreter.python)
    finally:
        await sandbox.stop()
    return float(result.passed >= set(task.must_pass) and bool(task.must_pass)), result.outcome


def _collides(path: str, files: Iterable[str]) -> bool:
    """Whether ``path`` needs a folder in the place of one of ``files``, or the other way round: the candidate's code
    replaced that file, and the sandbox of the verdict could not be made."""
    return any(path.startswith(f"{each}/") or each.startswith(f"{path}/") for each in files)


def replaces_tests(path: str, tests_path: str) -> bool:
    """Return whether Python could load the file ``path``, relative to the work folder, instead of the tests in
    ``tests_path``, or with them: a file in a folder of their own; a package, an extension module or bytecode of their
    name or of a folder on the way to them, which Python prefers to a source file; and all of ``__pycache__``, because
    bytecode can ask not to be compared with its source.
    """
    parts, tests = path.split("/"), tests_path.split("/")
    if "__pycache__" in parts or (len(tests) > 1 and parts[: len(tests) - 1] == tests[:-1]):
        return True
    return any(
        parts[:depth] == tests[:depth] and part != name and part.partition(".")[0] == name.partition(".")[0]
        for depth, (part, name) in enumerate(zip(parts, tests, strict=False))
    )


def chosen(every: Sequence[Feature], count: int) -> list[Feature]:
    """Return ``count`` of the features, spread over the file; all if there are fewer."""
    if count >= len(every):
        return list(every)
    return [every[place * len(every) // count] for place in range(count)]
