"""Ids as tables print them."""

import pytest
from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.deploy.tail.shortened_ids import is_id, shortened

ID = "01a1fdd9-0000-7000-8000-000000111111"


def test_a_shortened_id_is_that_of_the_whole_one() -> None:
    assert shortened(ID) == "01a1fdd9…111111"
    assert is_id(ID, shortened(ID))
    assert not is_id(ID, "01a1fdd9…111112")


@pytest.mark.parametrize(
    "arguments",
    [["show", shortened(ID)], ["lineage", "--trajectory", shortened(ID)], ["lineage", "--event", shortened(ID)]],
)
def test_what_looks_an_id_up_says_how_to_see_it_whole(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli, [*arguments, shortened(ID), "--kafka", "127.0.0.1:9"])
    assert done.exit_code == 2
    assert "01a1fdd9…111111 is shortened: `headrace tail … --full` prints ids whole." in done.output
