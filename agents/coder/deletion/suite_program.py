"""The program that runs a module's test suite in a sandbox, in the folder of the candidate's files. Standard library
only.

    stdin    {"module": "graphlib", "tests": "test_graphlib", "nonce": "5f0c…"}
    stdout   {"nonce": "5f0c…", "passed": ["test_graphlib.TestTopologicalSort.test_simple_cases"], "others": [],
              "messages": {}, "canary": "ok"}

Doctests are left out: they are part of the module's own text, so who writes a deleted function anew need not write its
examples.

It is passed to the interpreter as text. It imports the test framework before the candidate's folder is on the path, and
takes its own classes and functions out of ``__main__``, so that no import gives them to the candidate. Before and after
the suite it runs a test that has to pass and one that has to fail, under the name of a test of the suite, so that a
changed framework cannot spare them by name, and compares what framework, builtins and this program consist of with what
they were. Code that shares the process with its tests can still forge results, for instance through frames or by a
change that it takes back, so the report is checked again outside, and is called best effort.
"""

import builtins
import contextlib
import io
import json
import os
import sys
import traceback
import types
import unittest
from collections.abc import Iterator, Mapping
from typing import Any

from test import support  # type: ignore[import-not-found]  # CPython's own, which has no stubs

WATCHED = ("contextlib", "json", "json.encoder", "os", "traceback", "types", "unittest")
"""Modules that must be as they were before the candidate, with their submodules of ``unittest``."""
GROWS = ("builtins", "unittest")
"""Modules in which new names change nothing for others."""
HEAP_TYPE = 1 << 9
"""Flag of a class that can be changed."""

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


def each_test(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Yield the tests of a suite and of those in it."""
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from each_test(each)
        else:
            yield each


class Framework:
    """What the test framework, the builtins and this program consist of, as it is now."""

    def __init__(self) -> None:
        modules = [module for name, module in sys.modules.items() if name in WATCHED or name.startswith("unittest.")]
        # The builtins come first: with them as they were, the rest of the comparison can be trusted.
        named: list[tuple[str, Mapping[str, Any]]] = [("builtins", vars(builtins))]
        named += [(module.__name__, vars(module)) for module in modules]
        named.append(("", globals()))
        classes = {
            value
            for _, space in named
            for value in space.values()
            if isinstance(value, type) and value.__flags__ & HEAP_TYPE
        }
        named += [("", vars(kind)) for kind in classes]
        self.spaces = [(name in GROWS, space, {**space}) for name, space in named]
        self.codes = [
            (value, value.__code__, value.__defaults__, value.__kwdefaults__)
            for _, _, space in self.spaces
            for value in space.values()
            if isinstance(value, types.FunctionType)
        ]

    def is_unchanged(self) -> bool:
        """Return whether all of it is the same. Compares by identity, so that no ``__eq__`` has a say."""
        for may_grow, space, before in self.spaces:
            for name, value in before.items():
                if name not in space or space[name] is not value:
                    return False
            for name in () if may_grow else space.keys() - before.keys():
                if name != "__warningregistry__" and type(space[name]) is not types.ModuleType:
                    return False
        for function, code, defaults, keyword_defaults in self.codes:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not keyword_defaults:
                return False
        return True


def canary_of(example: unittest.TestCase, *, fails: bool) -> unittest.TestCase:
    """Return a test with the names of ``example`` whose result is known."""

    def known(self: unittest.TestCase) -> None:
        self.assertEqual(1, 2 if fails else 1)  # noqa: PT009

    kind, (method,) = type(example), example.id().split(".")[-1:]
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, method: known}
    made: unittest.TestCase = type(kind.__name__, (unittest.TestCase,), names)(method)
    return made


def canary(tests: list[unittest.TestCase]) -> bool:
    """Return whether a test that passes and one that fails are recorded as such, with the names of any of ``tests``."""
    example = tests[int.from_bytes(os.urandom(4), "big") % len(tests)]
    passing, failing = Recorder(), Recorder()
    canary_of(example, fails=False).run(passing)
    canary_of(example, fails=True).run(failing)
    return (len(passing.passed), passing.others) == (1, []) and (failing.passed, len(failing.others)) == ([], 1)


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
    main_module, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    framework = Framework()
    recorder = Recorder()
    tests: list[unittest.TestCase] = []
    is_genuine = True
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            suite = unittest.defaultTestLoader.loadTestsFromName(asked["tests"])
            tests += each_test(suite)
            is_genuine = framework.is_unchanged() and (not tests or canary(tests))
            suite.run(recorder)
        except BaseException as error:  # noqa: BLE001 - whatever loading a candidate raises is its result
            recorder.others.append(type(error).__name__)
            recorder.note(type(error).__name__, sys.exc_info())
        is_genuine = is_genuine and framework.is_unchanged() and canary(tests or [unittest.FunctionTestCase(print)])
    sys.modules["__main__"] = main_module
    failed = set(recorder.others)
    answer = {
        "nonce": asked["nonce"],
        "passed": sorted(set(recorder.passed) - failed)[:MOST_NAMES],
        "others": sorted(failed)[:MOST_NAMES],
        "messages": recorder.messages,
        "canary": "ok" if is_genuine else "patched",
    }
    os.write(report, json.dumps(answer).encode())


if __name__ == "__main__":
    main()
