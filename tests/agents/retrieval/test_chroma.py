"""Chroma as the store of vectors: the real package, in a process of its own."""

from pathlib import Path

from tests.beside import assert_tests_pass

HERE = Path(__file__).parent


def test_chroma() -> None:
    assert_tests_pass(HERE / "store_in_chroma.py", HERE / "chroma.txt", ANONYMIZED_TELEMETRY="False")
