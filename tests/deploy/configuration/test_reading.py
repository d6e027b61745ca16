"""Reading a configuration from layers; errors for unknown, missing and wrong options."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from headrace.deploy.configuration.reading import Layer, read_configuration, set_layer, toml_layer
from headrace.deploy.errors import StackError


class Taste(StrEnum):
    SWEET = "sweet"
    SOUR = "sour"


@dataclass(frozen=True)
class Filling:
    taste: Taste = Taste.SWEET
    """How it tastes."""
    grams: int | None = None
    """How much."""

    def __post_init__(self) -> None:
        if self.grams is not None and self.grams < 0:
            raise ValueError(f"grams is {self.grams}: it must be at least 0")


@dataclass(frozen=True)
class Cake:
    name: str
    """What it is called."""
    recipe: Path = Path("r")
    """Where it is written."""
    filling: Filling = field(default_factory=Filling)
    """What is inside."""
    layers: tuple[float, float] = (1.0, 2.0)
    """Heights."""
    crumbs: Filling = field(init=False)
    """What falls off."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "crumbs", self.filling)


def read(values: dict[str, object], *assignments: str) -> Cake:
    return read_configuration(Cake, [Layer("cake.toml", {"name": "n"} | values), set_layer(assignments)])


def test_the_later_layer_takes_precedence_for_each_option(tmp_path: Path) -> None:
    file = tmp_path / "cake.toml"
    file.write_text('name = "one"\nlayers = [3, 4.5]\n[filling]\ntaste = "sour"\ngrams = 3\n')
    cake = read_configuration(Cake, [toml_layer(file), set_layer(["filling.grams=4", "recipe=x/y"])])
    assert cake == Cake("one", Path("x/y"), Filling(Taste.SOUR, 4), (3.0, 4.5))


def test_a_whole_table_can_be_set() -> None:
    assert read({}, 'filling={"taste": "sour", "grams": 7}').filling == Filling(Taste.SOUR, 7)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"nmae": 1}, "cake.toml: there is no option nmae. Did you mean name? Options: name, recipe, "),
        ({"filling": {"tastes": 1}}, "no option filling.tastes. Did you mean taste? Options in [filling]: "),
        ({"crumbs": {"grams": 1}}, "cake.toml: there is no option crumbs."),
        ({"grams": 1}, "cake.toml: there is no option grams. Did you mean filling.grams?"),
        ({"filling": {"taste": "salty"}}, 'filling.taste is "salty". Allowed: sweet or sour. How it tastes.'),
        ({"filling": {"grams": "many"}}, 'cake.toml: filling.grams is "many". Allowed: whole number. How much.'),
        ({"filling": {"grams": True}}, "cake.toml: filling.grams is true. Allowed: whole number."),
        ({"filling": {"grams": "7"}}, 'cake.toml: filling.grams is "7". Allowed: whole number.'),
        ({"filling": {"grams": -1}}, "cake.toml: grams is -1: it must be at least 0."),
        ({"filling": 3}, "cake.toml: filling is 3. Allowed: table. What is inside."),
        ({"layers": [1, "x"]}, 'cake.toml: layers.1 is "x". Allowed: list of 2 × number. Heights.'),
        ({"layers": [1]}, "cake.toml: layers.1 is [1]. Allowed: list of 2 × number. Heights."),
    ],
)
def test_errors_name_the_option_its_source_and_the_allowed_values(values: dict[str, object], expected: str) -> None:
    with pytest.raises(StackError) as raised:
        read(values)
    assert expected in str(raised.value)


def test_all_errors_are_reported_together_with_their_sources() -> None:
    with pytest.raises(StackError) as raised:
        read_configuration(
            Cake, [Layer("cake.toml", {"icing": 1, "filling": {"taste": 3}}), set_layer(["filling.grams=x"])]
        )
    problems = str(raised.value).splitlines()
    assert problems[0].startswith("cake.toml: there is no option icing")
    assert problems[1:] == [
        "name is not set: What it is called.",
        "cake.toml: filling.taste is 3. Allowed: sweet or sour. How it tastes.",
        '--set: filling.grams is "x". Allowed: whole number. How much.',
    ]


def test_without_strictness_a_text_may_be_a_number() -> None:
    cake = read_configuration(Cake, [Layer("env", {"name": "n", "filling": {"grams": "7"}})], strict=False)
    assert cake.filling.grams == 7


@pytest.mark.parametrize("assignment", ["grams", "=1", ".grams=1", "filling.=1"])
def test_an_assignment_needs_an_option_and_a_value(assignment: str) -> None:
    with pytest.raises(StackError, match="OPTION=VALUE"):
        set_layer([assignment])


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    for content, expected in (
        (None, "No such file"),
        (b"a = ", "is not a TOML file"),
        (b"\xff", "is not a TOML file"),
        (b"#" * (1 << 21), "larger"),
    ):
        file = tmp_path / "x.toml"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(StackError, match=expected):
            toml_layer(file)
