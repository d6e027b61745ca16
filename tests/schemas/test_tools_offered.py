"""The label of a set of tools: one for any order, and of bounded length."""

from headrace.schemas.tools_offered import MAX_OFFERED, tools_offered


def test_a_set_of_tools_has_one_label() -> None:
    assert tools_offered(["search", "read", "search"]) == tools_offered(["read", "search"]) == "read,search"
    assert tools_offered([]) == ""
    assert tools_offered(["\ud800"]) == "?"


def test_a_long_label_is_cut_and_still_tells_sets_apart() -> None:
    many = [f"tool_{number:04}" for number in range(200)]
    label, other = tools_offered(many), tools_offered(many[:-1])
    assert label.startswith("tool_0000,tool_0001,")
    assert len(label) == len(other) == MAX_OFFERED
    assert label != other
    assert tools_offered(reversed(many)) == label
