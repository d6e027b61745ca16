"""A trainer's progress as exported metrics."""

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from headrace.trainer.learning.metric_registry import METRICS, Metric, Subject
from headrace.trainer.progress.gauges import METER, observe_progress
from headrace.trainer.progress.pace import Phase
from headrace.trainer.progress.progress import Progress


@pytest.fixture
def scraped():
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)])
    progress = Progress()
    observe_progress(progress, provider.get_meter(METER))

    def scrape():
        return generate_latest(registry).decode()

    yield progress, scrape
    provider.shutdown()


def values(text):
    lines = [line for line in text.splitlines() if line.startswith("headrace_trainer")]
    return {line.split("{")[0]: float(line.split()[-1]) for line in lines}


def test_every_metric_is_exported_with_its_name_and_description(scraped):
    progress, scrape = scraped
    progress.begin(3, 16)
    progress.enter(Phase.WAITING)
    progress.gathered(5)
    progress.stepped(4, {name: float(number) for number, name in enumerate(METRICS)})
    text = scrape()
    seen = values(text)
    for number, name in enumerate(METRICS):
        if name.endswith("*"):  # a family: the test below
            continue
        seconds = name.startswith("seconds_")
        assert seen[f"headrace_trainer_{name.removeprefix('seconds_')}{'_seconds' * seconds}"] == number
    assert (seen["headrace_trainer_version"], seen["headrace_trainer_groups"]) == (4, 5)
    assert (seen["headrace_trainer_groups_wanted"], seen["headrace_trainer_steps_total"]) == (16, 1)
    assert 'phase="waiting"' in text
    assert f"HELP headrace_trainer_chi2 {METRICS['chi2'].about}" in text


def test_before_the_first_step_no_loss_is_exported(scraped):
    progress, scrape = scraped
    progress.begin(3, 16)
    assert "headrace_trainer_loss" not in values(scrape())
    assert values(scrape())["headrace_trainer_version"] == 3


def test_a_family_is_one_metric_with_a_label(monkeypatch):
    family = Metric("trained_age_*", "{token}", "Tokens by age.", Subject.STALENESS)
    monkeypatch.setitem(METRICS, family.name, family)
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)])
    progress = Progress()
    observe_progress(progress, provider.get_meter(METER))
    progress.stepped(1, {"trained_age_0": 7.0, "trained_age_2": 3.0})
    lines = [line for line in generate_latest(registry).decode().splitlines() if line.startswith("headrace_trainer_tr")]
    assert [(line.split('of="')[1].split('"')[0], line.split()[-1]) for line in lines] == [("0", "7.0"), ("2", "3.0")]
    provider.shutdown()
