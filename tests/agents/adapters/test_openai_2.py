"""The tests of OpenAI's client once more, with version 2 of it, in a process of their own."""

from pathlib import Path

from tests.beside import assert_tests_pass

HERE = Path(__file__).parent


def test_version_2_of_the_client() -> None:
    assert_tests_pass(HERE / "test_openai.py", HERE / "openai-2.txt", OPENAI_EXPECTED="2.")
