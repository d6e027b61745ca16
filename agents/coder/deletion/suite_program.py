"""The program that runs a module's test suite in a sandbox, in the folder of the candidate's files. Standard library
only.

    stdin    {"module": "graphlib", "tests": "test_graphlib", "nonce": "5f0c…"}
    stdout   {"nonce": "5f0c…", "passed": ["test_graphlib.TestTopologicalSort.test_simple_cases"], "others": [],
              "messages": {}, "canary": "ok"}

Doctests are left out: they are part of the module's own text, so who writes a deleted function anew need not write its
examples.

It is passed to the interpreter as text. It imports the test framework before the candidate's folder is on the path, and
runs two tests of its own after the candidate's module is loaded: one has to pass and one to fail. Code that shares the
process with its tests can still forge results, so the report is checked again outside, and is called best effort.
"""

import contextlib
import io
import json
import os
import sys
import traceback
import unittest
from typing import Any

from test import support  # type: ignore[import-not-found]  # CPython's own, which has no stubs

MOST_NAMES = 20_000
MOST_MESSAGES = 10
MESSAGE = 2_000


class Recorder(unittest.TestResult):
    """Names of the tests by how they ended; skipped and expected failures are neither passed nor failed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[str] = []
        self.others: list[str] = []
        self.messages: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        if not is_doctest(test):
            self.passed.append(test.id())

    def addError(self, test: unittest.TestCase, error: Any) -> None:  # noqa: N802
        self.broke(test, error)

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:  # noqa: N802
        self.broke(test, error)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, error: Any) -> None:  # noqa: N802
        if error is not None:
            self.broke(test, error)

    def broke(self, test: unittest.TestCase, error: Any) -> None:
        if not is_doctest(test):
            self.others.append(test.id())
            self.note(test.id(), error)

    def note(self, name: str, error: Any) -> None:
        """Keep the end of an error's text, of a few tests."""
        if name not in self.messages and len(self.messages) < MOST_MESSAGES:
            self.messages[name] = "".join(traceback.format_exception(*error, limit=-3))[-MESSAGE:]


def is_doctest(test: unittest.TestCase) -> bool:
    """Whether a test is an example in a docstring."""
    doctest = sys.modules.get("doctest")
    return doctest is not None and isinstance(test, doctest.DocTestCase)


class Canary(unittest.TestCase):
    """Tests whose results are known."""

    def passes(self) -> None:
        self.assertEqual(1, 1)  # noqa: PT009

    def fails(self) -> None:
        self.assertEqual(1, 2)  # noqa: PT009


def canary() -> str:
    """Return ``ok`` if a test that passes and one that fails are recorded as such."""
    recorder = Recorder()
    for name in ("passes", "fails"):
        Canary(name).run(recorder)
    right = [each.rpartition(".")[2] for each in recorder.passed] == ["passes"] and len(recorder.others) == 1
    return "ok" if right else "patched"


def main() -> None:
    """Run the suite that standard input names."""
    asked = json.load(sys.stdin)
    report = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    support.verbose = False
    sys.path.insert(0, os.getcwd())
    # The test framework may have loaded the masked original, which is empty.
    sys.modules.pop(asked["module"], None)
    recorder = Recorder()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            suite = unittest.defaultTestLoader.loadTestsFromName(asked["tests"])
            suite.run(recorder)
        except BaseException as error:  # noqa: BLE001 - whatever loading a candidate raises is its result
            recorder.others.append(type(error).__name__)
            recorder.note(type(error).__name__, sys.exc_info())
    failed = set(recorder.others)
    answer = {
        "nonce": asked["nonce"],
        "passed": sorted(set(recorder.passed) - failed)[:MOST_NAMES],
        "others": sorted(failed)[:MOST_NAMES],
        "messages": recorder.messages,
        "canary": canary(),
    }
    os.write(report, json.dumps(answer).encode())


if __name__ == "__main__":
    main()
