"""A log contains no secret, and a record's content cannot forge an entry."""

import io
import logging

import pytest

from headrace.deploy.log_format import LogFormatter
from headrace.deploy.terminal import print_table


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(LogFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.Logger("part")
    logger.addHandler(handler)
    return logger, output


def test_secrets_are_removed_from_messages_arguments_and_tracebacks(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, output = log
    logger.warning("%s is away", "http://u:canary@h:1/?password=canary")
    try:
        raise ConnectionError("u:canary@h:9092 refused")
    except ConnectionError:
        logger.exception("lost")
    assert "canary" not in output.getvalue()
    assert "WARNING part: http://***@h:1/?password=*** is away" in output.getvalue()
    assert "ConnectionError: ***@h:9092 refused" in output.getvalue()
    assert "Traceback" in output.getvalue()


def test_content_cannot_forge_an_entry_or_move_the_cursor(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, output = log
    logger.info("event %s is late", "x\nERROR part: the trainer is dead\r\x1b[2J\u202e")
    assert output.getvalue().splitlines() == [
        "INFO part: event x",
        r"    ERROR part: the trainer is dead\r\x1b[2J\u202e is late",
    ]


def test_a_clickhouse_table_keeps_its_frame_and_control_characters_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table("┌─x─┐\n│ \x1b[31m\x9b2J\u202e │\n└───┘\na\tb\u3164\n")
    assert capsys.readouterr().out == "┌─x─┐\n│ \\x1b[31m\\x9b2J\\u202e │\n└───┘\na\tb\\u3164\n"
