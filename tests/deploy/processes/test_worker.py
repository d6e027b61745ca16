"""How a worker ends that has lost its connection to Kafka."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.deploy.processes.worker import operator_message
from headrace.schemas.kafka.topic_clock import WrongClockError
from headrace.schemas.operator_error import TopicsError
from headrace.streams.lost_offset import LostOffsetError
from headrace.trainer.weights.signing import load_or_create_key


@pytest.mark.parametrize("name", ["assemble", "follower"])
def test_a_worker_without_kafka_ends_without_a_traceback(name, tmp_path):
    env = {"HEADRACE_KAFKA": "127.0.0.1:9", "HEADRACE_VLLM": "http://127.0.0.1:9", "HEADRACE_DATA": str(tmp_path)}
    if name == "follower":
        load_or_create_key(tmp_path / "keys" / "trainer.pem")
    argv = [sys.executable, "-m", "headrace.deploy.cli", "worker", name]
    ended = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert (
        f"{name} lost its connection to the Kafka at 127.0.0.1:9 (setting HEADRACE_KAFKA): KafkaConnectionError"
        in ended.stderr
    )
    assert "resumes from its last commit" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) < 10


@pytest.mark.parametrize(
    "error",
    [
        LostOffsetError("offsets are gone: set max_remembered"),
        WrongClockError("run kafka-configs.sh"),
        TopicsError("the broker has no topic 'events'"),
        ExceptionGroup("both", [LostOffsetError("offsets are gone"), ExceptionGroup("", [TopicsError("no topic")])]),
    ],
    ids=repr,
)
def test_operator_errors_end_a_worker_with_their_message(error):
    first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
    assert operator_message(error, "assemble", "broker:9092") == f"assemble: {first}"


@pytest.mark.parametrize(
    "error", [LookupError("ours"), ValueError("ours"), ExceptionGroup("", [TopicsError("no topic"), KeyError("ours")])]
)
def test_a_bug_keeps_its_traceback(error):
    assert operator_message(error, "assemble", "broker:9092") is None


def test_a_follower_without_a_trusted_key_does_not_start_and_names_the_setting(tmp_path):
    env = {"HEADRACE_KAFKA": "127.0.0.1:9", "HEADRACE_VLLM": "http://127.0.0.1:9", "HEADRACE_DATA": str(tmp_path)}
    result = CliRunner().invoke(cli, ["worker", "follower"], env=env)
    assert result.exit_code == 1
    assert "trust is empty" in result.output
    assert "headrace keys" in result.output


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"otlp": {"nope": 1}}, "otlp (--set, HEADRACE_OPTIONS): there is no option nope."),
        ({"otlp": {"host": "0.0.0.0"}, "gateway": {"idle_s": 60}}, "otlp (--set, HEADRACE_OPTIONS): host"),
        ({"oltp": {"mask": True}}, "names oltp, which is not a part: the parts with options are vllm, gateway, otlp,"),
    ],
)
def test_the_receiver_of_spans_which_no_stack_runs_takes_options(options, problem, tmp_path):
    env = {"HEADRACE_KAFKA": "127.0.0.1:9", "HEADRACE_OTLP_PORT": "9", "HEADRACE_OPTIONS": json.dumps(options)}
    ended = CliRunner().invoke(cli, ["worker", "otlp", "--data", str(tmp_path)], env=env)
    assert ended.exit_code == 1
    assert problem in ended.output


def test_keys_prints_the_same_public_key_of_the_trainer_each_time(tmp_path):
    printed = [CliRunner().invoke(cli, ["keys", "--data", str(tmp_path)]).output.strip() for _ in range(2)]
    assert printed == [load_or_create_key(tmp_path / "keys" / "trainer.pem").public] * 2
    other = CliRunner().invoke(cli, ["keys", "--key", str(tmp_path / "other.pem")]).output.strip()
    assert other == load_or_create_key(tmp_path / "other.pem").public != printed[0]
    (tmp_path / "other.pem").write_text("nothing")
    spoilt = CliRunner().invoke(cli, ["keys", "--key", str(tmp_path / "other.pem")])
    assert spoilt.exit_code == 1
    assert "not a private key" in spoilt.output
