"""Options as text: a list, and a commented TOML file with the defaults."""

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from headrace.deploy.configuration.described import describe
from headrace.deploy.configuration.reading import Layer, read_configuration
from headrace.deploy.configuration.shown import as_list, as_toml, as_values, toml_of
from headrace.trainer.config import TrainerConfig


class Taste(StrEnum):
    SWEET = "sweet"
    """Sugar is in it."""
    SOUR = "sour"
    """Lemon is in it."""


@dataclass(frozen=True)
class Filling:
    taste: Taste = Taste.SWEET
    """How it tastes."""
    grams: float = 1e-06
    """How much."""


@dataclass(frozen=True)
class Cake:
    name: str
    """What it is called."""
    filling: Filling = field(default_factory=Filling)
    """What is inside."""
    icing: Filling | None = None
    """What is on it."""
    guests: tuple[str, ...] = ('Zoë "Z"',)
    """Who comes."""
    slices: int = field(init=False)
    """One for each guest."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slices", len(self.guests))


CAKE = [*describe(Cake)]


def test_the_toml_file_has_every_option_and_changes_nothing() -> None:
    text = as_toml(CAKE)
    assert tomllib.loads(text) == {"filling": {}}
    for line in ("# What it is called. (text, required)", '#taste = "sweet"', "#   sour: Lemon is in it.", "#[icing]"):
        assert line in text.splitlines()


def test_uncommented_the_toml_file_contains_the_defaults() -> None:
    lines = as_toml(CAKE).replace("#[icing]", "[icing]").splitlines()
    uncommented = [line.removeprefix("#") for line in lines if not line.startswith("# ") and not line.endswith("=")]
    cake = read_configuration(Cake, [Layer("file", {"name": "n"} | tomllib.loads("\n".join(uncommented)))])
    assert cake == Cake("n", icing=Filling())


def test_the_trainers_file_is_toml_and_changes_nothing() -> None:
    places = {"bootstrap": "b:1", "run": "r", "model_dir": "m", "checkpoint_dir": "c", "store_url": "file:///s"}
    options = [*describe(TrainerConfig)]
    template = tomllib.loads(as_toml(options))
    read = read_configuration(TrainerConfig, [Layer("file", places | template)])
    assert read == TrainerConfig("b:1", "r", Path("m"), Path("c"), "file:///s")
    for option in options:
        assert f"{option.path[-1]} =" in as_toml(options) or f"[{option.name}]" in as_toml(options)


def test_a_configuration_survives_a_round_trip_through_toml() -> None:
    cake = Cake("n", Filling(Taste.SOUR, 2.0), Filling())
    assert read_configuration(Cake, [Layer("file", tomllib.loads(toml_of(cake)))]) == cake
    assert "icing" not in toml_of(Cake("n"))


def test_the_list_has_every_option_with_its_default() -> None:
    lines = as_list(CAKE).splitlines()
    assert "name = (required)    text" in lines
    assert "filling.grams = 1e-06    number" in lines
    assert "    How much." in lines
    assert as_values(CAKE)["filling.taste"]["choices"] == {"sweet": "Sugar is in it.", "sour": "Lemon is in it."}
