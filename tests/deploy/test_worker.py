"""How a worker ends that has lost its Kafka."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["assemble", "follower"])
def test_a_worker_without_its_kafka_ends_in_a_sentence_and_not_in_a_traceback(name, tmp_path):
    env = {"HEADRACE_KAFKA": "127.0.0.1:9", "HEADRACE_VLLM": "http://127.0.0.1:9", "HEADRACE_DATA": str(tmp_path)}
    argv = [sys.executable, "-m", "headrace.deploy.cli", "worker", name]
    ended = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert f"{name} lost the Kafka at 127.0.0.1:9 (setting HEADRACE_KAFKA): KafkaConnectionError" in ended.stderr
    assert "goes on from its last commit" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) < 10
