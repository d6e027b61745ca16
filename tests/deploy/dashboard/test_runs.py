"""A run that does not exist is an error that names the nearest ones."""

import pytest

from headrace.deploy.dashboard.runs import unknown_run


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["search-3", "coder-1"], "There is no run 'serach-3'. Is it 'search-3'?"),
        (["a1", "b2"], "There is no run 'serach-3'. The newest of 2: 'a1', 'b2'. Choose one above."),
        ([], "There is no run 'serach-3', and no other yet: headrace demo starts one."),
    ],
)
def test_a_mistyped_run_names_what_there_is(names: list[str], said: str) -> None:
    assert unknown_run("serach-3", names) == said
