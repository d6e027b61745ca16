"""LiteLLM with the logger and a scripted endpoint, in a process of its own: it needs another version of OpenAI's
client."""

from pathlib import Path

from tests.beside import assert_tests_pass

HERE = Path(__file__).parent


def test_litellm() -> None:
    assert_tests_pass(HERE / "calls_of_litellm.py", HERE / "litellm.txt", LITELLM_LOCAL_MODEL_COST_MAP="True")
