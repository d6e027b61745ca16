"""Deletion tasks are verified by real tests in an isolated sandbox; planted cheats earn nothing."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.agents.coder.deletion import tasks
from headrace.agents.coder.deletion.features import features
from headrace.agents.coder.deletion.installation import (
    Installation,
    Interpreter,
    NoSuchModule,
    copies,
    installation,
    originals,
)
from headrace.agents.coder.deletion.packages import PackageUnusable
from headrace.agents.coder.deletion.suite import SuiteOutcome, SuiteResult, parse_report
from headrace.agents.coder.deletion.tasks import (
    DeletionTask,
    Rejection,
    chosen,
    interpreter_of,
    interpreters_of,
    is_in_c,
    limits_of,
    replaces_tests,
    suite_of,
    verdict,
    verified,
)
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import Limits
from tests.agents.coder.deletion.conftest import FEATURE, MODULE


async def test_a_deletion_makes_some_tests_fail_and_leaves_others(task: DeletionTask) -> None:
    assert task.fails_without
    assert set(task.fails_without) < set(task.must_pass)
    assert f"def {FEATURE}" not in task.broken
    assert DeletionTask.of_line(task.line()) == task


async def test_the_original_earns_everything_and_the_broken_module_nothing(
    provider: Overlay, installed: Installation, task: DeletionTask
) -> None:
    path = f"{MODULE}.py"
    assert await verdict(provider, task, installed.interpreter, {path: installed.source.encode()}) == (
        1.0,
        SuiteOutcome.RAN,
    )
    assert await verdict(provider, task, installed.interpreter, {}) == (0.0, SuiteOutcome.RAN)


CHEATS = {
    "exit": ("import sys; sys.exit(0)", SuiteOutcome.RAN),
    "_exit": ("import os; os._exit(0)", SuiteOutcome.NO_REPORT),
    "skips": ("import unittest; unittest.TestCase.run = lambda self, result=None: None", SuiteOutcome.PATCHED),
    "passes": (
        "import unittest\nunittest.TestCase.run = lambda self, result=None: result.addSuccess(self)",
        SuiteOutcome.PATCHED,
    ),
    "asserts": (
        "import unittest\nfor name in dir(unittest.TestCase):\n"
        "    if name.startswith('assert'): setattr(unittest.TestCase, name, lambda *a, **k: None)",
        SuiteOutcome.PATCHED,
    ),
    "report": (
        "import os, json\nfor fd in range(3, 30):\n"
        "    try: os.write(fd, json.dumps({'nonce': '', 'passed': [], 'canary': 'ok'}).encode())\n"
        "    except OSError: pass\nos._exit(0)",
        SuiteOutcome.FORGED,
    ),
    "recorder": (
        "import __main__\nbroke = __main__.Recorder.broke\n"
        "__main__.Recorder.broke = lambda self, test, error: broke(self, test, error) "
        "if type(test).__name__ == 'Canary' else self.passed.append(test.id())",
        SuiteOutcome.RAN,  # there is no such name, so the module cannot be loaded
    ),
    "recorder by its frame": (
        "import sys\nframe = sys._getframe()\nwhile 'Recorder' not in frame.f_globals: frame = frame.f_back\n"
        "found, names = frame.f_globals['Recorder'], open('test_colorsys.py').read()\nbroke = found.broke\n"
        "found.broke = lambda self, test, error: self.passed.append(test.id()) "
        "if type(test).__name__ in names and test.id().rpartition('.')[2] in names else broke(self, test, error)",
        SuiteOutcome.PATCHED,
    ),
    "canary": (
        "import __main__, unittest\n__main__.canary = lambda *given: True\n"
        "unittest.TestCase.run = lambda self, result=None: result.addSuccess(self)",
        SuiteOutcome.PATCHED,
    ),
    "canary told by its code": (
        "import unittest\nmethod = unittest.TestCase._callTestMethod\n"
        "unittest.TestCase._callTestMethod = lambda self, test: "
        "method(self, test) if test.__func__.__code__.co_name == 'known' else None",
        SuiteOutcome.PATCHED,
    ),
    "canary told by its class, in a new attribute": (
        "import unittest\ndef found(self, name):\n"
        "    value = object.__getattribute__(self, name)\n"
        "    tests = [each for each in dir(type(self)) if each.startswith('test')]\n"
        "    return (lambda: None) if name.startswith('test') and len(tests) > 1 else value\n"
        "unittest.TestCase.__getattribute__ = found",
        SuiteOutcome.PATCHED,
    ),
    "code of the framework": (
        "import unittest\ndef quiet(self, method):\n    if method.__func__.__code__.co_name == 'known': method()\n"
        "unittest.TestCase._callTestMethod.__code__ = quiet.__code__",
        SuiteOutcome.PATCHED,
    ),
    "json": (
        "import json\ndumps = json.dumps\n"
        "json.dumps = lambda answer: dumps({**answer, 'passed': answer['passed'] + answer['others'], 'others': []})",
        SuiteOutcome.PATCHED,
    ),
    "builtins": (
        "import builtins\nordered, kept = sorted, set\nclass Nothing(kept): pass\n"
        "def those(*given):\n    return Nothing() if given and given[0] and "
        "ordered(given[0])[0].startswith('test_colorsys') and len(given[0]) < 6 else kept(*given)\n"
        "builtins.set = those",
        SuiteOutcome.PATCHED,
    ),
    "recorder by its base class": (
        "import unittest\nevery = unittest.TestResult.__subclasses__()\n"
        "[found] = [each for each in every if each.__name__ == 'Recorder']\n"
        "broke = found.broke\n"
        "found.broke = lambda self, test, error: broke(self, test, error) "
        "if len([each for each in dir(type(test)) if each.startswith('test')]) < 2 else self.passed.append(test.id())",
        SuiteOutcome.PATCHED,
    ),
}


@pytest.mark.parametrize("name", CHEATS)
async def test_a_planted_cheat_earns_nothing_and_is_labelled(
    provider: Overlay, installed: Installation, task: DeletionTask, name: str
) -> None:
    code, outcome = CHEATS[name]
    written = {f"{MODULE}.py": f"{task.broken}\n{code}\n".encode()}
    assert await verdict(provider, task, installed.interpreter, written) == (0.0, outcome)


async def test_edited_tests_and_a_framework_of_ones_own_earn_nothing(
    provider: Overlay, installed: Installation, task: DeletionTask
) -> None:
    empty = b"import unittest\nclass Anything(unittest.TestCase):\n    def test_it(self): pass\n"
    shadows = {f"{name}.py": b"raise SystemExit(0)\n" for name in ("unittest", "json", "random", "sitecustomize")}
    assert (await verdict(provider, task, installed.interpreter, {f"test_{MODULE}.py": empty, **shadows}))[0] == 0.0


async def test_a_folder_in_the_place_of_a_file_earns_nothing_and_is_no_failure_of_the_sandbox(
    provider: Overlay, installed: Installation, task: DeletionTask
) -> None:
    written = {f"{MODULE}.py/x": b"", f"test_{MODULE}.py/x": b""}
    assert await verdict(provider, task, installed.interpreter, written) == (0.0, SuiteOutcome.RAN)
    packaged = replace(task, others={"more/inner.py": ""})
    assert await verdict(provider, packaged, installed.interpreter, {"more": b""}) == (0.0, SuiteOutcome.RAN)


async def test_files_that_outgrow_the_sandbox_earn_nothing_and_are_no_failure_of_it(
    provider: Overlay, installed: Installation, task: DeletionTask
) -> None:
    block = bytes(Limits().read_bytes)
    written = {f"f{number}": block for number in range(Limits().disk_bytes // len(block))}
    assert await verdict(provider, task, installed.interpreter, written) == (0.0, SuiteOutcome.NO_REPORT)


EMPTY_TESTS = f"""import ast, unittest
for node in ast.parse(open("test_{MODULE}.py").read()).body:
    if isinstance(node, ast.ClassDef):
        tests = [each.name for each in node.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test")]
        found = {{"__module__": __name__, **{{name: lambda self: None for name in tests}}}}
        globals()[node.name] = type(node.name, (unittest.TestCase,), found)
"""


async def test_a_package_with_the_name_of_the_tests_earns_nothing(
    provider: Overlay, installed: Installation, task: DeletionTask
) -> None:
    written = {f"test_{MODULE}/__init__.py": EMPTY_TESTS.encode()}
    assert await verdict(provider, task, installed.interpreter, written) == (0.0, SuiteOutcome.RAN)


@pytest.mark.parametrize(
    ("path", "tests_path", "is_so"),
    [
        ("test_a/__init__.py", "test_a.py", True),
        ("test_a.cpython-311-x86_64-linux-gnu.so", "test_a.py", True),
        ("test_a.pyc", "test_a.py", True),
        ("__pycache__/test_a.cpython-311.pyc", "test_a.py", True),
        ("tests/__init__.py", "tests/test_a.py", True),
        ("tests/test_a/__init__.py", "tests/test_a.py", True),
        ("tests.py", "tests/test_a.py", True),
        ("tests/__init__.py", "tests.py", True),
        ("a/tests.py", "a/tests/test_a.py", True),
        ("a.py", "test_a.py", False),
        ("a/__init__.py", "test_a.py", False),
        ("a/tests.py", "tests.py", False),
        ("a/more.py", "a/tests/test_a.py", False),
        ("test_b.py", "test_a.py", False),
    ],
)
def test_what_python_could_load_instead_of_the_tests_is_known(path: str, tests_path: str, is_so: bool) -> None:
    assert replaces_tests(path, tests_path) is is_so


async def test_neither_the_original_nor_its_bytecode_nor_its_tests_can_be_read(
    provider: Overlay, installed: Installation, task: DeletionTask
) -> None:
    read = (
        "import importlib.util, glob, sysconfig\n"
        f"lib = sysconfig.get_path('stdlib')\n"
        f"for path in [*glob.glob(lib + '/{MODULE}.py'), *glob.glob(lib + '/**/*{MODULE}*', recursive=True)]:\n"
        "    try: print(len(open(path, 'rb').read()))\n"
        "    except OSError: print('refused')\n"
    )
    sandbox = await provider.start(task.files(), limits_of(installed.interpreter))
    seen = await sandbox.execute([installed.interpreter.python, "-I", "-S", "-c", read])
    copied = await sandbox.execute(
        [installed.interpreter.python, "-I", "-S", "-c", f"import {MODULE}; print({MODULE}.{FEATURE})"]
    )
    await sandbox.stop()
    assert seen.exit_code == 0, seen.stderr
    assert set(seen.stdout.split()) <= {b"0", b"refused"}
    assert copied.exit_code != 0


async def test_without_the_mask_the_original_could_be_read(provider: Overlay, installed: Installation) -> None:
    sandbox = await provider.start({"x.py": b""})
    seen = await sandbox.execute(
        [installed.interpreter.python, "-I", "-S", "-c", f"import {MODULE}; print({MODULE}.{FEATURE})"]
    )
    await sandbox.stop()
    assert seen.exit_code == 0


async def test_what_the_interpreter_has_in_c_too_is_no_task(provider: Overlay) -> None:
    """Three lines would restore it: ``sys.modules.pop("_bisect")`` and an import of ``_bisect``."""
    installed = installation("bisect")
    for feature in features(installed.source):
        assert await verified(provider, installed, feature) is Rejection.IS_IN_C
    assert is_in_c("statistics", "_normal_dist_inv_cdf")
    assert is_in_c("collections", "OrderedDict.popitem")
    assert not is_in_c("random", "Random.randint")
    assert not is_in_c("csv", "Dialect.__init__")
    assert not is_in_c("statistics", "median")
    assert not is_in_c("graphlib", "TopologicalSorter.done")


async def test_a_deletion_that_no_test_notices_is_no_task(provider: Overlay, installed: Installation) -> None:
    source = installed.source + "\n\ndef unused():\n    x = 1\n    return x\n"
    untested = replace(installed, source=source)
    feature = features(source)[-1]
    assert await verified(provider, untested, feature) is Rejection.NOT_TESTED


async def test_a_reference_that_fails_or_does_not_repeat_is_no_task(provider: Overlay, installed: Installation) -> None:
    feature = features(installed.source)[0]
    other = SuiteResult(SuiteOutcome.RAN, frozenset({"test_colorsys.Other.test_it"}))
    assert await verified(provider, installed, feature, other) is Rejection.NOT_REPEATABLE
    failed = SuiteResult(SuiteOutcome.NO_REPORT)
    assert await verified(provider, installed, feature, failed) is Rejection.REFERENCE_FAILS
    assert (await suite_of(provider, installed, "raise ValueError\n")).passed == frozenset()


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (b"", SuiteOutcome.NO_REPORT),
        (b"[]", SuiteOutcome.FORGED),
        (b"{", SuiteOutcome.FORGED),
        (b'{"nonce": "other", "passed": [], "canary": "ok"}', SuiteOutcome.FORGED),
        (b'{"nonce": "n", "passed": 3, "canary": "ok"}', SuiteOutcome.FORGED),
        (b'{"nonce": "n", "passed": ["a"], "canary": "patched"}', SuiteOutcome.PATCHED),
        (b'{"nonce": "n", "passed": ["a"], "canary": "ok"}', SuiteOutcome.RAN),
    ],
)
def test_reports_are_judged(text: bytes, outcome: SuiteOutcome) -> None:
    result = parse_report(text, "n")
    assert result.outcome is outcome
    assert bool(result.passed) is (outcome is SuiteOutcome.RAN)


def test_a_module_that_does_not_exist_is_refused_with_a_choice() -> None:
    with pytest.raises(NoSuchModule, match="graphlib"):
        installation("no_such_module")


def test_what_is_masked_includes_bytecode_and_tests(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "__pycache__/a.cpython-311.pyc",
        "test/test_a.py",
        "test/__pycache__/test_a.cpython-311.pyc",
        "b.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert len(originals(tmp_path, "a")) == 4


def test_copies_are_masked_wherever_a_sandbox_can_see_them(tmp_path: Path) -> None:
    for name in (
        "site-packages/shapes/square.py",
        "setuptools/_vendor/shapes/square.py",
        "site-packages/colours.py",
        "site-packages/__pycache__/colours.cpython-311.pyc",
        "site-packages/other.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for wheel, member in (("setuptools.whl", "setuptools/_vendor/shapes/square.py"), ("pip.whl", "pip/main.py")):
        with zipfile.ZipFile(tmp_path / wheel, "w") as archive:
            archive.writestr(member, "")
    (tmp_path / "broken.whl").write_text("no archive")
    found = copies((tmp_path,), frozenset({"shapes", "colours"}))
    assert {str(Path(path).relative_to(tmp_path)) for path in found} == {
        "site-packages/shapes",
        "setuptools/_vendor/shapes",
        "site-packages/colours.py",
        "site-packages/__pycache__/colours.cpython-311.pyc",
        "setuptools.whl",
    }


def test_the_interpreter_of_a_task_is_that_of_its_origin(task: DeletionTask, installed: Installation) -> None:
    assert interpreter_of(task) == installed.interpreter
    with pytest.raises(PackageUnusable, match="generate the tasks anew"):
        interpreter_of(replace(task, origin="jsonpointer==0.1"))


def test_a_machine_is_searched_once_for_each_module(
    task: DeletionTask, installed: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []

    def found(given: DeletionTask) -> Interpreter:
        searched.append(given.module)
        return installed.interpreter

    monkeypatch.setattr(tasks, "interpreter_of", found)
    given = [task, replace(task, feature="other"), replace(task, module="graphlib")]
    assert interpreters_of(given) == {each.task_id: installed.interpreter for each in given}
    assert searched == [MODULE, "graphlib"]


def test_features_are_chosen_over_the_whole_file(installed: Installation) -> None:
    every = features(installed.source)
    assert chosen(every, 2)[0] == every[0]
    assert chosen(every, 99) == every
    assert len(chosen(every, 3)) == 3


def test_a_line_that_is_no_task_is_refused() -> None:
    with pytest.raises(ValueError, match="no deletion task"):
        DeletionTask.of_line('{"module": "a"}')
