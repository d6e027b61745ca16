"""Descriptions of a configuration from its source code."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from headrace.deploy.commands.settings import CONFIGURATIONS
from headrace.deploy.configuration.described import describe, docstrings_of
from headrace.trainer.config import TrainerConfig


class Taste(StrEnum):
    SWEET = "sweet"
    """Sugar is
    in it."""
    SOUR = "sour"
    """Lemon is in it."""


@dataclass(frozen=True, slots=True)
class Filling:
    """What is inside."""

    taste: Taste = Taste.SWEET
    """How it tastes."""
    grams: Annotated[int, Field(ge=1)] | None = None
    """How much; unset: ``enough``."""


@dataclass(frozen=True, slots=True)
class Cake:
    """A cake."""

    name: str
    """What it is called."""
    filling: Filling = field(default_factory=Filling)
    """What is inside."""
    icing: Filling | None = None
    """What is on it; unset: nothing."""
    layers: tuple[float, float] = (1.0, 2.0)
    """Heights of the two."""
    guests: tuple[str, ...] = ()
    """Who comes."""
    shape: Literal["round", "square"] = "round"
    """Its outline."""
    recipe: Path | int = Path("r")
    """A file, or a number in the book."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Anything."""
    crumbs: Filling = field(init=False)
    """Computed from the other fields, so it is not an option."""


def test_every_option_has_its_path_type_default_and_docstring() -> None:
    options = {option.name: option for option in describe(Cake)}
    assert [*options] == [
        "name", "filling", "filling.taste", "filling.grams", "icing", "icing.taste", "icing.grams",
        "layers", "guests", "shape", "recipe", "notes",
    ]  # fmt: skip
    assert {name: option.allowed for name, option in options.items() if "." not in name} == {
        "name": "text", "filling": "table", "icing": "table", "layers": "list of 2 × number", "guests": "list of text",
        "shape": "round or square", "recipe": "path or whole number", "notes": "table",
    }  # fmt: skip
    assert options["filling.taste"].choices == (("sweet", "Sugar is in it."), ("sour", "Lemon is in it."))
    assert options["filling.grams"].allowed == "whole number"
    assert options["filling.grams"].about == "How much; unset: `enough`."
    assert (options["name"].required, options["icing"].required) == (True, False)
    assert options["icing"].default is None
    assert options["icing"].table
    assert not options["notes"].table


@pytest.mark.parametrize("part", CONFIGURATIONS)
def test_every_option_of_every_part_has_a_docstring(part: str) -> None:
    from importlib import import_module

    module, _, name = CONFIGURATIONS[part].partition(":")
    options = [*describe(getattr(import_module(module), name))]
    assert options
    assert [option.name for option in options if not option.about.rstrip("`)").endswith((".", ":"))] == []


def test_the_trainers_tables_are_complete() -> None:
    described = {option.name for option in describe(TrainerConfig)}
    assert {each.name for each in dataclasses.fields(TrainerConfig)} <= described
    assert {"loss_settings.clip_high", "correction.importance", "kl.coefficient"} <= described


def test_a_class_inherits_the_docstrings_of_its_parent() -> None:
    @dataclass(frozen=True)
    class Torte(Filling):
        candles: int = 1
        """How many."""

    assert [*docstrings_of(Torte)] == ["taste", "grams", "candles"]
