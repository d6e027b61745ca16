"""Edits replace, add and remove functions, and nothing else."""

import pytest

from headrace.agents.coder.repository import Repository

FILES = Repository(
    {
        "billing.py": (
            ("#", "fee", ":", "x", "plus", "rate"),
            ("def", "fee", "(", "x", ")", ":", "return", "x", "+", "7"),
            ("#", "toll", ":", "x", "times", "rate"),
        ),
        "constants.txt": (("rate", "7"),),
        "tests.py": (("assert", "fee", "(", "1", ")", "==", "8"),),
    }
)


def test_an_edit_replaces_a_function_in_its_place() -> None:
    text = FILES.edited("billing.py", "fee", ("return", "0")).text("billing.py").decode()
    assert text == "# fee : x plus rate\ndef fee ( x ) : return 0\n# toll : x times rate\n"


def test_an_edit_adds_a_missing_function_below_its_specification() -> None:
    lines = FILES.edited("billing.py", "toll", ("return", "x", "*", "7")).files["billing.py"]
    assert lines[-1] == ("def", "toll", "(", "x", ")", ":", "return", "x", "*", "7")
    assert lines[:-1] == FILES.files["billing.py"]


def test_a_function_without_a_specification_is_added_at_the_end() -> None:
    lines = FILES.edited("constants.txt", "toll", ("return", "1")).files["constants.txt"]
    assert lines == (("rate", "7"), ("def", "toll", "(", "x", ")", ":", "return", "1"))


def test_the_original_is_unchanged() -> None:
    before = FILES.texts()
    FILES.edited("billing.py", "fee", ("return", "0"))
    FILES.without("billing.py", "fee")
    assert FILES.texts() == before


def test_without_a_function_its_specification_stays() -> None:
    assert FILES.without("billing.py", "fee").words("billing.py") == (
        *("#", "fee", ":", "x", "plus", "rate"),
        "<nl>",
        *("#", "toll", ":", "x", "times", "rate"),
    )


def test_a_search_finds_the_lines_that_define_a_name_and_no_tests() -> None:
    assert FILES.lines_about("rate") == [("constants.txt", ("rate", "7"))]
    assert [(path, line[0]) for path, line in FILES.lines_about("fee")] == [("billing.py", "#"), ("billing.py", "def")]
    assert FILES.lines_about("size") == []


def test_an_unknown_file_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        FILES.edited("stock.py", "fee", ("return", "0"))
