"""Runbooks: one for every alert, whose commands exist."""

import re
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.deploy.oncall.runbook import NoRunbook, runbook, titles
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import trainer_group
from headrace.streams.assembly.assembler import AssemblerConfig
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.notifying.notifier import GROUP
from headrace.streams.oncall.conditions import CONDITIONS
from headrace.streams.oncall.prometheus_rules import rules
from headrace.streams.watch.monitors import NAMES, is_reading, runbook_of
from headrace.streams.workers import consumer_group
from headrace.streams.workers_config import PROCESSORS
from tests.deploy.oncall.test_blind_rehearsals import CAUSES, DROPS

SECTIONS = ("**Means.**", "**Decide.**", "**Helps.**", "**Resolved**")


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    wanted = {
        *(condition.name for condition in CONDITIONS),
        *(rule.runbook for rule in rules()),
        *(runbook_of(name) for name in (*NAMES, "component:answer", "against:answer")),
    }
    assert wanted == titles().keys()


@pytest.mark.parametrize("name", titles())
def test_a_runbook_says_what_it_means_how_to_decide_and_what_helps(name: str) -> None:
    text = runbook(name)
    if name != "oncall-silent":
        assert [part for part in SECTIONS if part in text] == list(SECTIONS)
    index = (Path(runbook.__code__.co_filename).parent / "runbooks" / "README.md").read_text()
    assert f"[{name}]({name}.md)" in index


@pytest.mark.parametrize("name", titles())
def test_commands_of_a_runbook_exist_with_their_options(name: str) -> None:
    commands = re.findall(r"`headrace ([^`]+)`", runbook(name).replace("\n", " "))
    commands += [each.helps.removeprefix("headrace ") for each in CONDITIONS if each.name == name]
    assert commands
    for line in commands:
        command: click.Command = cli
        words = line.split()
        while words and isinstance(command, click.Group):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, line
            command = found
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


@pytest.mark.parametrize("name", [*NAMES, "component:NAME", "against:NAME"])
def test_the_runbook_of_a_monitor_names_it(name: str) -> None:
    assert is_reading(name) or f"`{name}`" in runbook(runbook_of(name))


@pytest.mark.parametrize(("name", "causes"), [("lag", CAUSES), ("reward-drop", DROPS)])
def test_the_causes_that_are_rehearsed_are_on_the_page(name: str, causes: Mapping[str, object]) -> None:
    page = runbook(name).replace("\n", " ")
    assert [cause for cause in causes if cause not in page] == []


def test_every_error_of_a_dead_letter_is_in_its_runbook() -> None:
    rows = [line.split(" | ") for line in runbook("dead-letters").splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"| `{error}`" for error in DeadLetterError]
    assert all(len(row) == 3 and len(row[2]) > 10 for row in rows)


def test_the_groups_in_the_runbook_about_lag_exist() -> None:
    own = {*map(consumer_group, PROCESSORS), AssemblerConfig("").group, SinkConfig("", "").group}
    named = {*re.findall(r"`(headrace-[^`]+|assemble|sink|score|group|observe|watch)`", runbook("lag"))}
    assert named == own | {trainer_group("RUN"), f"{GROUP}-…"}


def test_the_command_prints_a_runbook_or_the_list() -> None:
    run = CliRunner().invoke
    assert run(cli, ["runbook", "lag"]).output.startswith("# A consumer group is behind\n")
    listed = run(cli, ["runbook"]).output
    assert [line.split()[0] for line in listed.splitlines()] == [*titles()]
    done = run(cli, ["runbook", "flood"])
    assert done.exit_code == 2
    assert "there are dead-letters, " in done.output
    with pytest.raises(NoRunbook):
        runbook("../README")


def test_rules_for_prometheus_have_the_limits_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_OPTIONS", '{"oncall": {"limits": {"lag_s": 42}}}')
    done = CliRunner().invoke(cli, ["metrics", "--rules"])
    assert done.exit_code == 0, done.output
    assert 'expr: "headrace_oncall_lag_seconds >= 42"' in done.output
    assert CliRunner().invoke(cli, ["metrics", "--rules", "--json"]).exit_code == 2
