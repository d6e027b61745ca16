"""A folder's run: it is continued unless the user names another."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import Settings, load_settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process
from headrace.deploy.stack.folder_run import RunChoice, choose_run, last_run, remember_run, with_run_of_folder
from headrace.deploy.stack.foreground import _given
from headrace.deploy.stack.stack import running_stack


@pytest.mark.parametrize(
    ("named", "last", "run", "says"),
    [
        (None, None, "default", None),
        ("a", None, "a", None),
        ("a", "a", "a", None),
        (None, "a", "a", "Continuing run a,"),
        (None, "default", "default", "Continuing run default,"),
        ("b", "a", "b", "The last run on this folder was a; this start is of run b."),
        ("default", "a", "default", "this start is of run default."),
    ],
)
def test_the_run_of_a_start(named: str | None, last: str | None, run: str, says: str | None) -> None:
    chosen = choose_run(named, "default", last)
    assert chosen.run == run
    assert chosen.note is None if says is None else says in (chosen.note or "")


def test_how_to_return_to_the_other_run_is_said() -> None:
    assert choose_run("b", "default", "a") == RunChoice(
        "b",
        "The last run on this folder was a; this start is of run b. The records, versions and checkpoints of a remain, "
        "and --run a continues it.",
    )


async def test_a_stack_is_remembered_by_its_folder(settings: Settings, light: Callable[..., Process]) -> None:
    assert last_run(settings.data) is None
    async with running_stack(settings.model_copy(update={"run": "tuesday"}), processes=(light("only"),)):
        pass
    assert last_run(settings.data) == "tuesday"
    chosen, note = with_run_of_folder(settings)
    assert (chosen.run, note is not None and "Continuing run tuesday" in note) == ("tuesday", True)
    assert not list(settings.data.glob("*.new"))


@pytest.mark.parametrize(
    ("before", "run", "remembered"),
    [
        (None, "default", None),
        (None, "tuesday", "tuesday"),
        ("default", "default", "default"),
        ("a", "default", "default"),
    ],
)
async def test_a_first_start_that_failed_is_not_continued(
    before: str | None, run: str, remembered: str | None, settings: Settings, light: Callable[..., Process]
) -> None:
    settings.data.mkdir()
    if before is not None:
        remember_run(settings.data, before)
    failing = settings.model_copy(update={"run": run, "max_restarts": 0})
    with pytest.raises(StackError):
        async with running_stack(failing, processes=(light("sink", "raise SystemExit(1)"),)):
            pass
    assert last_run(settings.data) == remembered


@pytest.mark.parametrize("by", ["environment", "command line"])
def test_a_named_run_is_preferred(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember_run(tmp_path, "first")
    if by == "environment":
        monkeypatch.setenv("HEADRACE_RUN", "second")
    settings = load_settings(data=str(tmp_path), run="second" if by == "command line" else None)
    chosen, note = with_run_of_folder(settings)
    assert (chosen.run, "--run first continues it" in (note or "")) == ("second", True)
    assert _given(settings)["HEADRACE_RUN"] == "second"


def test_the_default_is_not_passed_on_as_if_it_were_named(tmp_path: Path) -> None:
    given = _given(load_settings(data=str(tmp_path)))
    assert "HEADRACE_RUN" not in given
    assert given["HEADRACE_DATA"] == str(tmp_path)


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"../up", b"\xff\xfe", b"x" * 10_000])
def test_a_damaged_file_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(StackError, match=r"run should contain the name of the last run.*delete it.*--run"):
        last_run(tmp_path)
