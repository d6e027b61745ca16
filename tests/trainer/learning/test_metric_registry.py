"""Every metric that a step publishes is declared: name, unit, meaning, threshold."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.trainer.batches.batch import make_batch
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.metric_page import metric_lines, metric_page
from headrace.trainer.learning.metric_registry import METRICS, Metric, Subject, metric_named
from headrace.trainer.losses.settings import CorrectionSettings, Importance, KlSettings
from headrace.trainer.model.load import load_model
from tests.trainer.builders import UNCHECKED, admitted, segment, tiny_model, trajectory


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "loss": "dapo",
            "kl": KlSettings(coefficient=0.1),
            "correction": CorrectionSettings(importance=Importance.MASK, max_token_staleness=3),
        },
    ],
)
def test_every_metric_of_a_real_step_is_declared(tmp_path, settings):
    model_dir = tiny_model(tmp_path / "model")
    config = TrainerConfig("b:1", "r", model_dir, tmp_path, "file:///s", plausibility=UNCHECKED, **settings)
    reference = load_model(model_dir) if config.kl.needs_base else None
    group = admitted("g", trajectory("a", segment("ccSSS")), trajectory("b", segment("cSScS")), advantages=[1.0, -1.0])
    measured = Learner(load_model(model_dir), config.learner, reference).step(make_batch([group]), 0)
    assert [name for name in measured if metric_named(name) is None] == []
    assert len(measured) > 20


def test_a_declaration_has_a_description_and_a_name_valid_for_every_writer():
    for metric in METRICS.values():
        assert metric.about.endswith("."), metric.name
        assert metric.name.removesuffix("*").isidentifier()
        assert metric.unit
    assert {metric.subject for metric in METRICS.values()} == set(Subject)


@pytest.mark.parametrize(
    ("name", "value", "warns"),
    [
        ("effective_sample_size", 0.29, True),
        ("effective_sample_size", 0.31, False),
        ("kl_k3", 0.11, True),
        ("chi2", 1.1, True),
        ("chi2", float("nan"), True),
        ("loss", float("nan"), False),
        ("loss", -1e9, False),
    ],
)
def test_thresholds_are_the_published_ones(name, value, warns):
    assert METRICS[name].warns(value) is warns


def test_a_threshold_is_shown_in_words():
    assert METRICS["effective_sample_size"].threshold == "below 0.3"
    assert METRICS["loss"].threshold == ""
    assert replace(METRICS["chi2"], warn_below=-1.0).threshold == "above 1 or below -1"


def test_a_family_matches_all_names_with_its_prefix(monkeypatch):
    family = Metric("admitted_age_*", "{trajectory}", "Admitted, by age.", Subject.STALENESS)
    monkeypatch.setitem(METRICS, family.name, family)
    assert metric_named("admitted_age_3") is family
    assert metric_named("admitted") is None
    assert metric_named("loss") is METRICS["loss"]


def test_the_page_lists_every_metric_as_it_is_declared():
    page = Path(__file__).parents[3] / "trainer" / "METRICS.md"
    assert page.read_text() == metric_page(), "headrace metrics --markdown > trainer/METRICS.md"
    for metric in METRICS.values():
        assert f"| `{metric.name}` |" in metric_page()
        assert f"  {metric.name} (" in metric_lines()
