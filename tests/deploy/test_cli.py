"""The command line: lazy imports, sections of commands, and clear errors."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headrace.deploy.cli import SECTIONS, cli, extra_with
from headrace.deploy.configuration.settings import Settings
from headrace.schemas.topics import MODELS, TOPICS

HEAVY = ("pydantic", "aiokafka", "httpx", "torch", "faust", "vllm", "transformers", "chdb", "starlette", "numpy")


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_help_shows_every_command_under_a_heading() -> None:
    shown = headrace("--help").output
    commands = sorted(import_module("headrace.deploy.cli")._COMMANDS.glob("[!_]*.py"))
    assert commands
    for file in commands:
        assert f"  {file.stem.rstrip('_').replace('_', '-')} " in shown
    assert next(iter(SECTIONS)) + ":" in shown
    assert "headrace up --without vllm,trainer,follower" in shown
    assert "..." not in shown.partition("Options:")[2], "a command's first sentence is too long to be shown whole"


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom headrace.deploy.cli import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize("name", sorted(name for section in SECTIONS.values() for name in section))
def test_every_command_of_a_section_has_a_help_text(name: str) -> None:
    done = headrace(name, "--help")
    assert done.exit_code == 0, done.output
    assert "Usage: " in done.output


def options_of(command: click.Command) -> Iterator[click.Option]:
    for each in command.params:
        if isinstance(each, click.Option):
            yield each
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from options_of(found)


def test_an_option_that_a_variable_sets_names_it() -> None:
    by_variable = [option for option in options_of(cli) if option.envvar]
    assert by_variable
    assert [option.name for option in by_variable if f"{option.envvar}" not in (option.help or "")] == []


@pytest.mark.parametrize("name", ["dead-letters", "environment", "reward", "watch"])
def test_a_group_of_commands_shows_what_each_does_whole(name: str) -> None:
    shown = headrace(name, "--help").output.partition("Commands:")[2]
    assert len(shown.splitlines()) > 4
    assert "..." not in shown


def test_an_unknown_command_is_an_error() -> None:
    done = headrace("upp")
    assert done.exit_code == 2
    assert "No such command 'upp'. Did you mean up?" in done.output
    assert "No such command 'xyzzy'. `headrace --help` lists them." in headrace("xyzzy").output


def test_a_process_that_is_taken_for_a_command_is_explained() -> None:
    shown = headrace("gateway", "--help").output
    assert "No such command 'gateway'. It is a process: `headrace worker gateway` runs it; those of the stack" in shown


def test_status_and_down_without_a_stack_are_errors_with_a_remedy(tmp_path: Path) -> None:
    for name in ("status", "down"):
        done = headrace(name, "--data", str(tmp_path))
        assert done.exit_code == 1
        assert done.output == (
            f"Error: No stack runs on {tmp_path}: `headrace up` starts one, --data (HEADRACE_DATA) selects another "
            "folder.\n"
        )


def test_up_reports_a_wrong_setting_without_a_traceback(tmp_path: Path) -> None:
    done = headrace("up", "--data", str(tmp_path), "--without", "vllm")
    assert done.exit_code == 1
    assert "Error: follower needs vllm" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("sql", "expected"),
    [(" ", "SQL is empty"), ("SELECT 1 format JSONEachRow;", "--format JSONEachRow")],
)
def test_an_invalid_query_is_refused_before_it_is_sent(sql: str, expected: str) -> None:
    result = headrace("query", sql)
    assert result.exit_code == 2
    assert expected in result.output


def test_a_worker_names_the_missing_address(tmp_path: Path) -> None:
    done = headrace("worker", "clickhouse", "--data", str(tmp_path))
    assert done.exit_code == 1
    assert "set HEADRACE_CLICKHOUSE_PORT" in done.output


def test_every_setting_is_listed_with_its_variable_and_its_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RUN", "mine")
    shown = headrace("settings").output.splitlines()
    assert "HEADRACE_RUN=mine" in shown
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert any(line.startswith(f"HEADRACE_{name.upper()}=") for line in shown)
    assert json.loads(headrace("settings", "--json").output).keys() == Settings.model_fields.keys()


def test_topics_are_printed_as_text_and_as_json() -> None:
    shown = headrace("topics").output
    for topic in TOPICS:
        assert f"{topic.name}: {topic.about}" in shown
    for name in MODELS:
        assert name in shown
    listed = json.loads(headrace("topics", "--json").output)
    assert [topic["name"] for topic in listed] == [topic.name for topic in TOPICS]
    assert all(topic["types"] for topic in listed)


def test_schemas_are_printed_and_written(tmp_path: Path) -> None:
    name = "headrace.tool.called.v1"
    assert json.loads(headrace("schemas", name).output).keys() == {name}
    assert json.loads(headrace("schemas").output).keys() == MODELS.keys()
    written = headrace("schemas", "--write", str(tmp_path))
    assert written.exit_code == 0
    assert {file.stem for file in tmp_path.glob("*.json")} == MODELS.keys()
    unknown = headrace("schemas", "headrace.tool.cald.v1")
    assert unknown.exit_code == 2
    assert name in unknown.output


def test_a_missing_module_is_reported_with_the_extra_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # makes the import fail
    assert (extra_with("matplotlib.pyplot"), extra_with("faust"), extra_with("nobody")) == ("local", "streams", None)
    assert extra_with("headrace.deploy.gone") is None

    def lacking(*_: object, **__: object) -> None:
        import matplotlib  # noqa: F401

    monkeypatch.setattr("headrace.deploy.commands.topics.command.callback", lacking)
    shown = headrace("topics")
    assert shown.exit_code == 1
    assert "matplotlib is not installed; it is part of headrace's extra local" in shown.output
