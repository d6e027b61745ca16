"""What one test changes in its process is as before in the next one: these run in this order."""

import logging

import pytest

from headrace.deploy.log_format import log_to_stderr


@pytest.mark.parametrize("turn", ["first", "second"])
def test_the_next_test_begins_with_the_usual_log(turn: str) -> None:
    root, client = logging.getLogger(), logging.getLogger("aiokafka")
    assert (root.level, client.level) == (logging.WARNING, logging.NOTSET), turn
    assert not any(type(each) is logging.StreamHandler for each in root.handlers), turn
    log_to_stderr("debug")
    client.setLevel(logging.CRITICAL)  # as run_with_kafka does
