"""Deletion tasks of packages: a small distribution made here, and, with the marker clients, the pinned ones."""

import hashlib
import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.coder.deletion import packages
from headrace.agents.coder.deletion.features import features
from headrace.agents.coder.deletion.installation import Interpreter
from headrace.agents.coder.deletion.packages import (
    PACKAGES,
    Package,
    PackageUnusable,
    fetch,
    installations,
    package_of,
)
from headrace.agents.coder.deletion.suite import SuiteOutcome
from headrace.agents.coder.deletion.tasks import DeletionTask, Rejection, chosen, suite_of, verdict, verified
from headrace.agents.sandbox.overlay import Overlay

FILES = {
    "shapes/__init__.py": "from .square import *\n",
    "shapes/square.py": '''"""Squares."""
__all__ = [
    'area',
    'edge',
]


def area(side):
    """The area.

    >>> area(2)
    4
    """
    return side * side


def edge(side):
    total = 4
    return total * side
''',
    "tests/__init__.py": "",
    "tests/test_square.py": """import doctest
import unittest
import shapes


class Squares(unittest.TestCase):
    def test_area(self):
        self.assertEqual(shapes.area(3), 9)

    def test_edge(self):
        self.assertEqual(shapes.edge(3), 12)


def load_tests(loader, tests, ignore):
    tests.addTests(doctest.DocTestSuite("shapes.square"))
    return tests
""",
    "README.md": "not needed",
    "docs/conf.py": "raise ValueError\n",
}


def distribution(files: dict[str, str]) -> bytes:
    """A source distribution with ``files``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"shapes-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("shapes-1.0/shapes/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return buffer.getvalue()


def package(content: bytes) -> Package:
    return Package(
        name="shapes",
        version="1.0",
        sha256=hashlib.sha256(content).hexdigest(),
        licence="MIT",
        imports=("shapes",),
        folders=("shapes",),
        tested={"shapes/square.py": "tests/test_square.py"},
    )


def test_what_is_needed_is_read_and_nothing_else() -> None:
    content = distribution(FILES)
    (found,) = installations(package(content), content, Interpreter("python3"))
    assert (found.origin, found.module, found.path) == ("shapes==1.0", "shapes.square", "shapes/square.py")
    assert found.source == FILES["shapes/square.py"]
    assert set(found.others) == {"shapes/__init__.py", "tests/__init__.py"}


async def test_a_function_of_a_package_is_deleted_with_its_export_and_can_be_written_anew(provider: Overlay) -> None:
    content = distribution(FILES)
    (found,) = installations(package(content), content)
    reference = await suite_of(provider, found, found.source)
    assert {name.rpartition(".")[2] for name in reference.passed} == {"test_area", "test_edge"}  # no doctest
    area = features(found.source)[0]
    task = await verified(provider, found, area, reference)
    assert isinstance(task, DeletionTask)
    assert DeletionTask.of_line(task.line()) == task
    assert "'area'" not in task.broken
    assert "'edge'" in task.broken
    assert [name.rpartition(".")[2] for name in task.fails_without] == ["test_area"]
    anew = task.broken.replace("    'edge',\n]\n", "    'area',\n    'edge',\n]\n\ndef area(x): return x ** 2\n")
    restored = await verdict(provider, task, found.interpreter, {"shapes/square.py": anew.encode()})
    assert restored == (1.0, SuiteOutcome.RAN)
    cheat = {"tests/__init__.py": b"import shapes; shapes.area = lambda x: 9\n"}
    assert await verdict(provider, task, found.interpreter, cheat) == (0.0, SuiteOutcome.RAN)


def test_another_distribution_than_the_pinned_one_is_refused() -> None:
    content = distribution(FILES)
    pinned = replace(package(content), sha256="0" * 64)
    with pytest.raises(PackageUnusable, match="pinned is 000"):
        installations(pinned, content, Interpreter("python3"))


def test_a_distribution_that_lacks_its_tests_or_is_none_or_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_tests = distribution({name: text for name, text in FILES.items() if not name.startswith("tests")})
    with pytest.raises(PackageUnusable, match=r"has no tests/test_square\.py"):
        installations(package(without_tests), without_tests, Interpreter("python3"))
    with pytest.raises(PackageUnusable, match="no source distribution that can be read"):
        installations(package(b"no archive"), b"no archive", Interpreter("python3"))
    monkeypatch.setattr(packages, "MOST_BYTES", 10)
    content = distribution(FILES)
    with pytest.raises(PackageUnusable, match="more than 10 bytes"):
        installations(package(content), content, Interpreter("python3"))


def test_a_download_is_pinned_by_hash_and_its_failure_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.extend([*command, Path(command[command.index("-r") + 1]).read_text()])
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no network")

    monkeypatch.setattr(packages.subprocess, "run", pip)
    with pytest.raises(PackageUnusable, match=r"jsonpointer==3\.0\.0: ERROR: no network"):
        fetch(PACKAGES["jsonpointer"], tmp_path)
    assert "--require-hashes" in asked
    assert asked[-1] == f"jsonpointer==3.0.0 --hash=sha256:{PACKAGES['jsonpointer'].sha256}\n"
    file = tmp_path / PACKAGES["jsonpointer"].file_name
    file.write_bytes(b"there already")
    assert fetch(PACKAGES["jsonpointer"], tmp_path) == file


def test_only_pinned_packages_have_tasks() -> None:
    assert package_of("more-itertools==10.8.0") is PACKAGES["more-itertools"]
    with pytest.raises(PackageUnusable, match="generate the tasks anew"):
        package_of("more-itertools==1.0")


@pytest.mark.clients
async def test_a_pinned_package_is_fetched_and_its_reference_passes(tmp_path: Path, provider: Overlay) -> None:
    pinned = PACKAGES["jsonpointer"]
    (found,) = installations(pinned, fetch(pinned, tmp_path / "sdists").read_bytes())
    kept = [await verified(provider, found, feature) for feature in chosen(features(found.source), 6)]
    tasks = [each for each in kept if isinstance(each, DeletionTask)]
    assert len(tasks) >= 2
    reasons = {each for each in kept if isinstance(each, Rejection)}
    assert reasons <= {Rejection.NOT_TESTED, Rejection.BREAKS_EVERYTHING}
    for task in tasks:
        original = {found.path: found.source.encode()}
        assert await verdict(provider, task, found.interpreter, original) == (1.0, SuiteOutcome.RAN)
        assert (await verdict(provider, task, found.interpreter, {}))[0] == 0.0
