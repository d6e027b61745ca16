"""Copies of a module's functions are found under any name, and a sandbox shows none of them."""

from pathlib import Path

import pytest

from headrace.agents.coder.deletion import installation as installations
from headrace.agents.coder.deletion import visible
from headrace.agents.coder.deletion.installation import Installation, NoSuchModule, package_interpreter
from headrace.agents.coder.deletion.tasks import DeletionTask, limits_of
from headrace.agents.coder.deletion.visible import SearchFailed, holders
from headrace.agents.sandbox.overlay import Overlay
from tests.agents.coder.deletion.conftest import FEATURE

SOURCE = '''"""Shapes."""


def area(width, height):
    """The area."""
    if width < 0 or height < 0:
        raise ValueError("negative")
    total = width * height
    return total


class Square:
    def edge(self):
        first = self.width
        second = self.height
        return max(first, second)

    def other(self):
        return self.edge() * 4
'''
EDITED = SOURCE.replace('"negative"', '"below zero"').replace('"""The area."""', '"""Another text."""')
UNRELATED = "def area(a):\n    b = a\n    c = b\n    return c\n\ndef edge(): pass\n"


def written(folder: Path, files: dict[str, str]) -> Path:
    """The folder with ``files``."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_copy_is_found_under_another_name_with_its_bytecode_and_an_unrelated_function_is_not(tmp_path: Path) -> None:
    folder = written(
        tmp_path,
        {
            "deep/below/my_shapes.py": EDITED,
            "deep/below/__pycache__/my_shapes.cpython-311.pyc": "",
            "method.py": SOURCE[SOURCE.index("class Square") :],
            "unrelated.py": UNRELATED,
        },
    )
    found = [str(Path(path).relative_to(folder)) for path in holders(SOURCE, (folder,))]
    assert found == ["deep/below/__pycache__/my_shapes.cpython-311.pyc", "deep/below/my_shapes.py", "method.py"]


def test_a_copy_that_a_product_brings_along_is_hidden_by_name_or_content_and_the_interpreter_still_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = written(tmp_path / "own", {"other.py": SOURCE, "shapes.py": SOURCE, "site-packages/vendored.py": EDITED})
    product = written(
        tmp_path / "product", {"lib/_vendor/shapes/square.py": SOURCE, "lib/mine.py": EDITED, "x.py": UNRELATED}
    )
    (product / "shapes.py").symlink_to(product / "missing.py")
    monkeypatch.setattr(installations, "_interpreter", lambda: ("python3", own))
    monkeypatch.setattr(installations, "roots", lambda: (product,))
    hidden = package_interpreter(("shapes",), SOURCE).masked
    assert {str(Path(path).relative_to(tmp_path)) for path in hidden} == {
        "own/site-packages/vendored.py",
        "product/lib/_vendor/shapes",  # and no file inside it
        "product/lib/mine.py",
    }


def test_a_module_of_the_standard_library_is_hidden_in_every_python_below_what_is_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = written(
        tmp_path / "product/bundled/lib/python3.99",
        {"os.py": "", "types.py": "", "colorsys.py": "pass\n", "test/test_colorsys.py": "pass\n", "json.py": ""},
    )
    monkeypatch.setattr(visible, "roots", lambda: (tmp_path / "product",))
    monkeypatch.setattr(installations, "roots", lambda: (tmp_path / "product",))
    monkeypatch.setattr(installations, "libraries", visible.libraries.__wrapped__)
    hidden = installations.library_interpreter.__wrapped__("colorsys").masked
    assert {path for path in hidden if path.startswith(str(tmp_path))} == {
        str(library / "colorsys.py"),
        str(library / "test/test_colorsys.py"),
    }


def test_a_search_that_takes_too_long_is_refused_and_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible, "SEARCH_S", 1e-9)
    with pytest.raises(SearchFailed, match="could not be searched"):
        holders(SOURCE, (tmp_path,))
    monkeypatch.setattr(installations, "roots", lambda: (tmp_path,))
    with pytest.raises(NoSuchModule, match="try again"):
        package_interpreter(("no_such_name",), SOURCE)


async def test_no_python_file_that_a_sandbox_shows_defines_the_deleted_function(
    provider: Overlay, installed: Installation, task: DeletionTask
) -> None:
    sandbox = await provider.start(task.files(), limits_of(installed.interpreter))
    search = ["grep", "-rlsE", "--include=*.py", "-e", f"def {FEATURE}", "/usr", "."]
    seen = await sandbox.execute(search, timeout_s=60.0)
    await sandbox.stop()
    assert seen.stdout == b""
    assert seen.exit_code in (1, 2)  # nothing found; 2: nor could all of it be read
