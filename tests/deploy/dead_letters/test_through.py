"""Values are repaired by any command that reads one and prints another."""

import sys

import pytest

from headrace.deploy.dead_letters.through import through
from headrace.deploy.errors import StackError
from headrace.streams.dead_letters.repair import CannotRepair

PYTHON = f"{sys.executable} -c"


def test_the_new_value_is_what_the_command_prints_for_the_old_one() -> None:
    upper = through(f"{PYTHON} 'import sys; print(sys.stdin.read().upper())'")
    assert [upper(b"a b"), upper("é".encode())] == [b"A B", "É".encode()]


def test_a_command_that_fails_repairs_nothing() -> None:
    failing = through(f"{PYTHON} 'import sys; sys.exit(\"no such field\")'")
    with pytest.raises(CannotRepair, match=r"failed \(1\): no such field"):
        failing(b"{}")


@pytest.mark.parametrize(("command", "why"), [("jq '", "No closing quotation"), ("", "needs a command")])
def test_what_is_no_command_is_refused(command: str, why: str) -> None:
    with pytest.raises(StackError, match=why):
        through(command)


def test_a_command_that_does_not_exist_ends_the_repair() -> None:
    with pytest.raises(StackError, match="cannot be started"):
        through("/no/such/command")(b"{}")
