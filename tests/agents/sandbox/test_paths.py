"""A path stays in the work folder, whatever it is made of, and nothing is followed on the way."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.sandbox.paths import initial_files, parts_of
from headrace.agents.sandbox.protocol import Limits, PathRefused, TooLarge


@given(st.text(alphabet="ab./\0é", max_size=30))
def test_parts_never_leave_the_folder(path: str) -> None:
    try:
        parts = parts_of(path)
    except PathRefused:
        return
    joined = os.path.normpath(os.path.join("/work", *parts))
    assert joined.startswith("/work/")
    assert joined == os.path.normpath(os.path.join("/work", path))


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "x" * 2000, "\ud800"])
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(PathRefused):
        parts_of(path)


def test_a_folder_to_start_with_may_not_have_links(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(PathRefused, match="link"):
        list(initial_files(tmp_path, Limits()))


def test_the_files_to_start_with_are_bounded_in_number_and_size() -> None:
    with pytest.raises(TooLarge, match="disk_files"):
        list(initial_files({f"f{i}": b"" for i in range(4)}, Limits(disk_files=3)))
    with pytest.raises(TooLarge, match="disk_bytes"):
        list(initial_files({"a": b"12", "b": b"34"}, Limits(disk_bytes=3)))
