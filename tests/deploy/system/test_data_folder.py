"""Only the owner has access to a stack's files, and other files are not changed."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process
from headrace.deploy.stack.stack import running_stack
from headrace.deploy.system.data_folder import command_on, make_folder, tighten


@pytest.fixture(autouse=True)
def _generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[Path]:
    """What others may enter or read. Files that a running Kafka or ClickHouse removes meanwhile do not count."""
    found = []
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent), *(Path(parent, name) for name in (*folders, *files))):
            with contextlib.suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if not stat.S_ISLNK(mode) and mode & 0o077:
                    found.append(path)
    return found


async def test_files_of_a_stack_and_its_parts_are_private_whatever_the_umask(
    settings: Settings, light: Callable[..., Process], ready_then: Callable[[str], str]
) -> None:
    writes = f"os.makedirs({str(settings.data / 'kafka/log')!r}); open({str(settings.data / 'kafka/log/1')!r}, 'w')\n"
    parts = (light("kafka", "import os\n" + writes + ready_then("time.sleep(600)")),)
    async with running_stack(settings, processes=parts):
        assert {path.name for path in settings.data.iterdir()} >= {"stack.json", "stack.lock", "logs", "kafka"}
        assert open_to_others(settings.data) == []
    assert open_to_others(settings.data) == []
    assert os.umask(0) == 0  # unchanged


async def test_open_permissions_from_an_earlier_release_are_tightened_and_reported(
    settings: Settings, light: Callable[..., Process]
) -> None:
    (settings.data / "kafka" / "log").mkdir(parents=True)
    (settings.data / "kafka" / "log" / "0.log").write_text("x")
    (settings.data / "kafka" / "run").write_text("x")
    (settings.data / "kafka" / "run").chmod(0o755)
    reported: list[str] = []
    async with running_stack(settings, processes=(light("sink"),), on_note=reported.append):
        pass
    assert open_to_others(settings.data) == []
    assert stat.S_IMODE((settings.data / "kafka" / "run").stat().st_mode) == 0o700
    (note,) = reported
    assert note.startswith("Removed other users' access to 5 files and folders in ")
    async with running_stack(settings, processes=(light("sink"),), on_note=reported.append):
        pass
    assert reported == [note]


def test_files_that_do_not_belong_to_a_stack_are_not_changed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("x")
    data = tmp_path / "home"
    (data / "logs").mkdir(parents=True)
    (data / "letters.txt").write_text("x")
    (data / "logs" / "link").symlink_to(elsewhere)
    (data / "objects").symlink_to(elsewhere)
    modes = {path: path.lstat().st_mode for path in (data, data / "letters.txt", elsewhere, elsewhere / "file")}
    assert tighten(data) == 1
    assert {path: path.lstat().st_mode for path in modes} == modes
    assert stat.S_IMODE((data / "logs").stat().st_mode) == 0o700


def test_an_unusable_data_folder_is_reported_with_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for wrong in (file, file / "below", tmp_path / ("x" * 300)):
        with pytest.raises(
            StackError, match=r"The data folder .* \(HEADRACE_DATA, --data\) cannot be used: "
        ) as raised:
            make_folder(wrong)
        assert "\n" not in str(raised.value)


def test_a_suggested_command_contains_the_folder_unless_it_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_on("status", tmp_path / ".headrace") == "headrace status"
    assert command_on("status", tmp_path / ".headrace" / "demo") == f"headrace status --data {tmp_path}/.headrace/demo"
    assert command_on("down", tmp_path / "two words") == f"headrace down --data '{tmp_path}/two words'"
