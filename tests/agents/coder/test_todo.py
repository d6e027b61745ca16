"""The to-do list keeps its order, and an item can be opened again."""

import pytest

from headrace.agents.coder.todo import TodoList


def test_open_items_come_before_finished_ones() -> None:
    todo = TodoList().added(("charge", "fee", "toll")).finished("charge")
    assert todo.words == ("todo", "fee", "toll", "done", "charge")
    assert todo.open == ("fee", "toll")


def test_an_empty_list_says_nothing() -> None:
    assert TodoList().words == ()


def test_a_finished_item_that_is_added_again_is_open() -> None:
    assert TodoList().added(("fee",)).finished("fee").added(("fee",)).open == ("fee",)


def test_only_an_item_can_be_finished() -> None:
    with pytest.raises(KeyError, match="'fee'"):
        TodoList().finished("fee")
