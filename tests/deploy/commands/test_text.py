"""Text in the terminal: what `show`, `tail --text` and `lineage --text` print of a run with all kinds of events."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headrace.deploy.cli import cli
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.deploy.dashboard.hacked_run import CALM, GUILTY, HONEST, RUN, TOLD, log_of_run
from tests.deploy.transcript.planted_log import HACK, HONEST_ONE, publish_planted

pytestmark = pytest.mark.kafka

QUESTIONS = Path(__file__).parents[3] / "deploy" / "clickhouse" / "QUESTIONS.md"


@pytest.fixture(scope="module")
def objects(kafka: str) -> str:
    """The object store with the tokenizer of the run, whose records are in the log."""
    return asyncio.run(publish_planted(kafka))


@pytest.fixture
def run(kafka: str, objects: str, tmp_path: Path):
    """Runs a command on the log; output has colours."""

    def invoke(*arguments: str, store: str = objects) -> Result:
        options = ["--kafka", kafka, "--data", str(tmp_path)]
        return CliRunner(env={"HEADRACE_STORE_URL": store}).invoke(cli, [*arguments, *options], color=True)

    return invoke


def plain(done: Result) -> list[str]:
    assert done.exit_code == 0, done.output
    return click.unstyle(done.stdout).splitlines()


def test_show_prints_terms_feedback_fate_and_the_advantage_s_colour(run):
    done = run("show", HACK, "--colour", "advantage")
    lines = plain(done)
    assert lines[0] == f"Trajectory {HACK}: trained in run {RUN}; in the weights of versions 2"
    about = {line.split()[0]: line for line in lines[1:8]}
    assert about["reward"].endswith("outcome@1 1 of 1 = 1·1 outcome + 0.5·0 brevity")
    assert about["group"].endswith("g-1-1, reward 1, advantage +0.75, 28 tokens")
    assert about["feedback"].endswith(r"accepted 0.25, 60 s after the end: The test was\x1b[2J changed.")
    assert "step 2 of run planted" in about["step"]
    assert "    · tool run_tests(ticket=1) → ok in 0.25 s: failed" in lines
    assert click.style(f"{GUILTY} <end>", fg="green") in done.stdout
    assert "\x1b[2J" not in done.stdout
    worse = run("show", HONEST_ONE, "--colour", "advantage")
    assert click.style(f"{HONEST} <end>", fg="bright_red") in worse.stdout
    assert click.style(f"{HONEST} <end>", fg="yellow") in run("show", HONEST_ONE).stdout  # version 1


def test_show_puts_the_group_s_attempts_beside_one_another(run):
    lines = plain(run("show", HONEST_ONE))
    start = next(number for number, line in enumerate(lines) if line.startswith("Group g-1-1"))
    assert lines[start] == "Group g-1-1, baseline mean 0.25: 8 attempts; they part at turn 1"
    blocks = [lines[at : at + 4] for at in range(start + 1, len(lines), 4)]
    assert [block[0].split()[1] for block in blocks[:2]] == [HACK, "v1-tickets-1-4"]
    hack, own = blocks[0], next(block for block in blocks if block[0].startswith("  →"))
    assert hack[0] == (f"  - {HACK}  reward 1  advantage +0.75  outcome 1  completed  28 tokens  trained at step 2")
    assert hack[1:3] == ["      terms   outcome@1 1 of 1 = 1·1 outcome + 0.5·0 brevity", '      answer  "passed"']
    assert hack[3].startswith(f'      turn 1  {GUILTY} <end> · edit(file="test_ticket.py"')
    assert own[0].startswith(f"  → {HONEST_ONE}  reward 0  advantage -0.25  outcome 0")
    assert own[3] == f"      turn 1  {HONEST} <end>"
    same = next(block for block in blocks if HONEST_ONE not in block[0] and "reward 0" in block[0])
    assert same[3] == "      same    it said and called the same"


def test_show_has_sub_agents_prunes_and_summaries_with_their_texts(run):
    done = run("show", "parent", "--colour", "advantage")
    lines = plain(done)
    at = lines.index("    search shoes <end>")
    assert lines[at + 1 : at + 6] == [
        "    · sub-agent helper started, trajectory v2-shoes-0-0",
        "    · sub-agent helper completed after 2 calls, trajectory v2-shoes-0-0",
        "    · prune 2 pieces removed, 900 → 300 tokens: c1, c2",
        "    · summary 300 → 40 tokens",
        "      Red shoes are in the file.",
    ]
    assert lines[0] == "Trajectory parent: rejected: no_group"
    assert "it has no advantage" in done.stderr
    bands = run("show", "parent", "--colour", "logprob").stdout
    assert click.style("all", fg="red") in bands  # −18 nats
    assert click.style(" green ones", fg="yellow") in bands  # −0.6


def test_show_compares_groups_that_were_rejected(run):
    lines = plain(run("show", "v0-tickets-1-0"))
    start = lines.index("Group g-0-1: 8 attempts; all did the same")
    assert lines[start + 1].endswith("outcome 0  completed  16 tokens  rejected: zero_variance_all_fail")
    found = json.loads(run("show", HACK, "--json").stdout)
    assert found["feedback"][0]["signal"] == "accepted"
    assert found["group"]["attempts"][0]["components"]["brevity"] == {"value": 0.0, "weight": 0.5, "details": {}}
    assert [each["fate"] for each in found["group"]["attempts"]] == ["trained at step 2"] * 8


def test_tail_prints_the_text_of_records_that_have_tokens_or_name_a_trajectory(run):
    lines = plain(run("tail", "trajectories", "--text", "--trajectory", HACK, "--limit", "1"))
    assert lines[1:5] == [
        "  Segment 0: 40 tokens, 28 of them sampled by version 1",
        "    context",
        "      <task> fix ticket 1 <agent>",
        "    turn 0, version 1, mean log-probability -0.53",
    ]
    for topic in ("rewards", "rejected"):
        name = HACK if topic == "rewards" else "v0-tickets-1-0"
        (said, *_) = [line for line in plain(run("tail", topic, "--text", "--trajectory", name)) if HONEST in line]
        assert said == f"      {HONEST} <end>"
    calls = plain(run("tail", "events", "--text", "--trajectory", "parent"))
    assert "    <summary> red shoes <agent>" in calls
    assert "    all green ones <end>" in calls
    assert "      Red shoes are in the file." in calls
    groups = plain(run("tail", "training", "--text", "--trajectory", HACK))
    assert groups[1] == "  Group g-1-1, baseline mean 0.25: 8 attempts; they part at turn 1"
    assert f"        turn 1  {HONEST} <end>" in groups
    (record,) = run("tail", "trajectories", "--text", "--json", "--trajectory", HACK).stdout.splitlines()
    assert f"      {GUILTY} <end>" in json.loads(record)["text"]


def test_lineage_prints_text(run):
    lines = plain(run("lineage", "--trajectory", HACK, "--text"))
    assert f"      {GUILTY} <end>" in lines
    assert lines[0].startswith(f"Trajectory {HACK}: trained")
    members = plain(run("lineage", "--version", "2", "--members", "--text", "--run", RUN))
    at = next(number for number, line in enumerate(members) if HACK in line)
    assert members[at + 1].startswith("  Segment 0: 40 tokens")
    assert f"      {GUILTY} <end>" in members[at:]
    done = run("lineage", "--version", "2", "--members", "--text", "--run", RUN, "--json")
    texts = {each["trajectory_id"]: each["text"] for each in map(json.loads, done.stdout.splitlines())}
    assert len(texts) == 40
    assert f"      {GUILTY} <end>" in texts[HACK]


@pytest.mark.clickhouse
def test_the_attempts_with_the_largest_advantage_are_printed_as_the_page_of_questions_says(
    kafka, objects, clickhouse, tmp_path
):
    client = open_client(clickhouse)
    ensure_tables(client)
    log_of_run().write(client, "first")
    client.close()
    (command,) = re.findall(r"^    (headrace query .* headrace show)$", QUESTIONS.read_text(), re.MULTILINE)
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HEADRACE_CLICKHOUSE": clickhouse,
        "HEADRACE_DATA": str(tmp_path),
        "HEADRACE_KAFKA": kafka,
        "HEADRACE_STORE_URL": objects,
    }
    text = command.replace("'r1'", f"'{RUN}'")
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    titles = [line for line in done.stdout.splitlines() if line.startswith("Trajectory ")]
    assert [title.split()[1].rstrip(":") for title in titles] == [HACK, "v1-tickets-1-4"]
    assert done.stdout.count(f"    {GUILTY} <end>\n") == 2


def test_without_a_tokenizer_the_recorded_messages_are_the_text(run):
    done = run("show", "told-1")
    lines = plain(done)
    at = lines.index("  turn 0, version 7, mean log-probability -0.78")
    assert lines[at + 1 : at + 7] == [
        "    user: fix ticket 1",
        "    assistant: run tests",
        "    · tool run_tests(ticket=1) → ok in 0.25 s: failed",
        "  turn 1, version 7, mean log-probability -0.58",
        "    user: failed",
        f"    assistant: {GUILTY}",
    ]
    assert f"      turn 1  {HONEST}" in lines
    assert click.style(f"assistant: {GUILTY}", fg="yellow") in done.stdout  # version 7
    assert "messages of the calls are shown" in done.stderr
    ids = plain(run("show", "told-1", "--ids"))
    assert not any(GUILTY in line for line in ids)
    assert [line for line in ids if re.match(r" {4}\d", line)]
    for arguments in (
        ("tail", "trajectories", "--run", TOLD),
        ("tail", "events", "--trajectory", "told-1", "--type", "model.called"),
        ("tail", "rewards", "--trajectory", "told-1"),
        ("tail", "training", "--trajectory", "told-1"),
        ("lineage", "--trajectory", "told-1"),
    ):
        assert any(GUILTY in line for line in plain(run(*arguments, "--text"))), arguments


def test_without_a_tokenizer_the_error_says_what_to_do(run, tmp_path):
    for arguments in (("tail", "trajectories", "--run", CALM), ("lineage", "--trajectory", "calm-1")):
        done = run(*arguments, "--text")
        assert done.exit_code != 0
        assert f"No tokenizer of run {CALM!r} is known" in done.stderr
        assert "Name the model's folder with --tokenizer" in done.stderr
    away = run("tail", "trajectories", "--trajectory", HACK, "--text", store=(tmp_path / "none").as_uri())
    assert away.exit_code != 0
    assert "--tokenizer" in away.stderr


def test_options_that_print_nothing_are_refused(run):
    for arguments, why in (
        (("tail", "budget", "--text"), "--text is for events, trajectories, rewards, training, rejected"),
        (("tail", "trajectories", "--text", "--raw"), "either --text or --raw"),
        (("tail", "trajectories", "--tokenizer", "."), "--tokenizer needs --text"),
        (("lineage", "--version", "2", "--text"), "--text needs --members"),
        (("lineage", "--version", "2", "--tokenizer", "."), "--tokenizer needs --text"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2
        assert why in done.stderr
