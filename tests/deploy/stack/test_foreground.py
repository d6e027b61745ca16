"""The output of a stack that starts in the background."""

from pathlib import Path

import pytest

from headrace.deploy.stack.foreground import relay


def test_an_error_of_the_background_process_is_separated_from_its_earlier_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "up.log"
    log.write_text("Starting headrace\n")
    assert relay(log, 0) == (18, "")
    log.write_text("Starting headrace\n  kafka  1.0 s\nError: port 1 is taken\n")
    shown, why = relay(log, 18)
    assert why == "port 1 is taken"
    assert relay(log, shown) == (shown, why)
    assert capsys.readouterr().out == "Starting headrace\n  kafka  1.0 s\n"
