"""``headrace train``: settings from all sources; every shipped file loads."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.deploy.configuration.described import describe
from headrace.deploy.configuration.settings import base_model_dir, load_settings
from headrace.deploy.demo.systems import NAMES
from headrace.deploy.errors import StackError
from headrace.deploy.fine_tuning.stages import stage_config
from headrace.deploy.processes.train import trainer_config, trainer_flow
from headrace.deploy.processes.trainer_checks import report_known_errors, require_topics
from headrace.deploy.system.ports import free_port, metrics_url
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.records.step import Step
from headrace.schemas.topics import BUDGET, STEPS
from headrace.trainer.checkpoints.checkpoint import CheckpointError
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.metric_registry import metric_named
from tests.trainer.builders import tiny_model
from tests.trainer.feed import feed_groups, records

SHIPPED = sorted((Path(__file__).parents[3] / "deploy" / "training").glob("*.toml"))


def test_every_shipped_file_is_described_in_the_readme_next_to_it() -> None:
    page = (SHIPPED[0].parent / "README.md").read_text()
    assert set(re.findall(r"\]\((.+\.toml)\)", page)) == {file.name for file in SHIPPED}


def test_a_learning_rate_is_required_unless_the_model_is_the_shipped_one(tmp_path: Path) -> None:
    settings = load_settings(kafka="b:1")
    assert trainer_config(settings).optimizer.learning_rate == 8e-4
    assert trainer_config(settings, None, ["optimizer.weight_decay=0.1"]).optimizer.learning_rate == 8e-4
    for model in (["model_dir=~/models/Qwen3-8B"], [f"model_dir={tmp_path}", "optimizer.name=muon"]):
        with pytest.raises(StackError, match=r"optimizer.learning_rate is not set.*1e-6.*2e-5 for lora"):
            trainer_config(settings, None, model)
        assert trainer_config(settings, None, [*model, "optimizer.learning_rate=3e-6"]).optimizer.learning_rate == 3e-6
    with pytest.raises(StackError, match="learning_rate"):
        trainer_config(load_settings(kafka="b:1", model_dir=str(tmp_path)))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_file_loads(file: Path) -> None:
    config = trainer_config(load_settings(kafka="b:1"), file)
    assert config.chosen_loss()
    assert "~" not in f"{config.model_dir}{config.checkpoint_dir}"


@pytest.mark.parametrize(("system", "loss"), [("search", "cispo"), ("coder", "dr_grpo"), ("swarm", "kimi")])
def test_each_system_has_settings_for_a_real_model_that_the_command_accepts(system: str, loss: str) -> None:
    assert system in NAMES
    (file,) = [file for file in SHIPPED if re.fullmatch(rf"{system}-.*-[\d.]+b", file.stem)]
    shown = CliRunner().invoke(cli, ["train", "--config", str(file), "--kafka", "b:1", "--check"])
    assert shown.exit_code == 0, shown.output
    config = trainer_config(load_settings(kafka="b:1"), file)
    assert (config.loss, config.device, config.dtype) == (loss, "cuda", "bfloat16")
    assert config.run == file.stem
    assert f'loss = "{loss}"' in shown.output


def test_precedence_is_command_line_environment_file_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.toml"
    file.write_text('bootstrap = "file:1"\nrun = "file"\nseed = 1\nsubsteps = 2\nthreads = 3\n')
    monkeypatch.setenv("HEADRACE_RUN", "environment")
    monkeypatch.setenv("HEADRACE_OPTIONS", '{"trainer": {"seed": 2, "substeps": 3}}')
    config = trainer_config(load_settings(data=str(tmp_path)), file, ["substeps=4"])
    assert (config.bootstrap, config.run) == ("file:1", "environment")
    assert (config.seed, config.substeps, config.threads) == (2, 4, 3)
    assert config.checkpoint_dir == tmp_path / "checkpoints" / "environment"
    assert config.store_url == f"file://{tmp_path}/objects"
    assert config.model_dir == base_model_dir()
    assert config.signing_key == tmp_path / "keys" / "trainer.pem"


def test_the_stacks_trainer_is_the_same_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = load_settings(data="d", kafka="a:1", run="r", options={"trainer": {"kl": {"coefficient": 0.1}}})
    for name, value in stack.environment().items():
        monkeypatch.setenv(name, value)
    assert trainer_config(load_settings()) == trainer_config(
        load_settings(data="d"), None, ["bootstrap=a:1", "run=r", "kl.coefficient=0.1"]
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("max_stalenes = 1", "run.toml: there is no option max_stalenes. Did you mean max_staleness?"),
        ("[kl]\ncoeff = 1", "run.toml: there is no option kl.coeff. Did you mean coefficient? Options in [kl]: "),
        ('seed = "one"', 'run.toml: seed is "one". Allowed: whole number. Seed of all random numbers.'),
        ('loss = "ppo"', "loss 'ppo' is not known: choose one of cispo, dapo"),
        ('loss = "dapo"\n[loss_settings]\nratio_max = 3.0', "ratio_max is not a setting of the loss dapo"),
    ],
)
def test_a_wrong_option_is_reported_with_the_file_and_the_allowed_values(
    tmp_path: Path, content: str, expected: str
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(content)
    with pytest.raises(StackError) as raised:
        trainer_config(load_settings(kafka="b:1"), file)
    assert expected in str(raised.value)


def test_a_missing_kafka_address_is_reported_with_the_ways_to_set_it() -> None:
    done = CliRunner().invoke(cli, ["train", "--check"])
    assert done.exit_code == 1
    assert "--kafka HOST:PORT, HEADRACE_KAFKA, or bootstrap in the file" in done.output


def test_check_prints_an_equivalent_file(tmp_path: Path) -> None:
    arguments = ["train", "--check", "--kafka", "b:1", "--set", "kl.coefficient=0.1", "--set", "loss=dapo"]
    printed = CliRunner().invoke(cli, arguments).output
    file = tmp_path / "again.toml"
    file.write_text(printed)
    assert trainer_config(load_settings(), file) == trainer_config(
        load_settings(kafka="b:1"), None, ["kl.coefficient=0.1", "loss=dapo"]
    )
    assert trainer_config(load_settings(), file).sha256() in printed


def test_the_help_explains_a_first_run() -> None:
    shown = CliRunner().invoke(cli, ["train", "--help"]).output
    for expected in ("reads", "writes", "A first run", "Examples", "--check", "headrace settings trainer"):
        assert expected in shown


def test_settings_prints_every_option_of_the_trainer() -> None:
    names = [option.name for option in describe(TrainerConfig)]
    listed = CliRunner().invoke(cli, ["settings", "trainer"]).output
    for name in names:
        assert f"{name} = " in listed or f"[{name}]" in listed
    assert [*json.loads(CliRunner().invoke(cli, ["settings", "trainer", "--json"]).output)] == names
    assert "PART" in CliRunner().invoke(cli, ["settings", "--toml"]).output


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("model_dir=/nowhere", "model_dir /nowhere is not a Hugging Face model directory"),
        ("device=cuda", "device is cuda, but torch finds no GPU"),
    ],
)
def test_a_missing_model_or_device_is_reported_before_anything_starts(
    option: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    options = ["--set", option, "--set", "optimizer.learning_rate=1e-6"]
    done = CliRunner().invoke(cli, ["train", "--kafka", "b:1", "--data", str(tmp_path), *options])
    assert done.exit_code == 1
    assert f"Error: {expected}" in done.output
    assert not [*tmp_path.iterdir()]


def test_a_kafka_that_does_not_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.deploy.kafka.broker.LISTENS_S", 0.2)
    address = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(cli, ["train", "--kafka", address, "--data", str(tmp_path)])
    assert done.exit_code == 1
    assert f"Error: The Kafka broker at {address}" in done.output


def test_known_errors_of_a_trainer_are_reported_in_a_sentence() -> None:
    with pytest.raises(StackError, match=r"^trainer-1: the log knows version 3$"), report_known_errors("trainer-1"):
        raise CheckpointError("the log knows version 3")
    with pytest.raises(KeyError), report_known_errors("trainer"):
        raise KeyError("a bug stays a traceback")


def test_the_examples_in_the_help_use_existing_settings() -> None:
    shown = CliRunner().invoke(cli, ["train", "--help"]).output
    assignments = re.findall(r"--set ([a-z_.]+=\S+)", shown)
    assert len(assignments) >= 4
    assert trainer_config(load_settings(kafka="b:1"), None, assignments)
    assert set(re.findall(r"deploy/training/([\w.-]+\.toml)", shown)) <= {file.name for file in SHIPPED}


@pytest.mark.kafka
async def test_missing_topics_are_reported_with_the_command_that_creates_them(kafka: str) -> None:
    topics = {topic.name for topic in trainer_flow().topics}
    await require_topics(kafka, topics)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.delete_topics([BUDGET.name])
    try:
        async with asyncio.timeout(30):
            while BUDGET.name in await admin.list_topics():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        with pytest.raises(StackError, match=f"lacks budget: run `headrace topics --create --kafka {kafka}`"):
            await require_topics(kafka, topics)
    finally:
        await create_topics(kafka)
        await admin.close()


@pytest.mark.kafka
async def test_a_trainer_runs_from_a_file_shows_its_progress_and_stops_on_a_signal(kafka: str, tmp_path: Path) -> None:
    await feed_groups(kafka, list("abcdef"), run="filed")
    port, file = free_port(), tmp_path / "run.toml"
    file.write_text(
        f'bootstrap = "{kafka}"\nrun = "filed"\nmodel_dir = "{tiny_model(tmp_path / "model")}"\n'
        "groups_per_step = 2\nmax_staleness = 100\nthreads = 1\n"
        f'[optimizer]\nlearning_rate = 1e-3\n[writers]\ntensorboard_dir = "{tmp_path / "runs"}"\n'
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.deploy.cli", "train", "--config", str(file), "--data", str(tmp_path),
        "--set", "steps=3",
        env=os.environ | {"HEADRACE_METRICS_PORTS": json.dumps({"trainer": port}), "OMP_NUM_THREADS": "1"},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    log = ""
    async with asyncio.timeout(300):
        while "step 3: " not in log:
            log += (line := await process.stderr.readline()).decode()
            assert line, log
    text = await asyncio.to_thread(lambda: urlopen(metrics_url(port), timeout=10).read().decode())
    process.send_signal(signal.SIGTERM)
    assert (await asyncio.wait_for(process.communicate(), 60), process.returncode)[1] == 0

    steps = [payload for _, payload in await records(kafka, STEPS, "filed")]
    assert [step.step for step in steps if isinstance(step, Step)] == [1, 2, 3]
    for step in steps:
        assert isinstance(step, Step)
        assert [name for name in step.metrics if metric_named(name) is None] == []
    parts = {"seconds_wait", "seconds_resolve", "seconds_train", "seconds_save", "seconds_publish"}
    assert parts <= set(steps[1].metrics)
    assert sum(steps[1].metrics[name] for name in parts) <= steps[1].metrics["seconds_step"]
    (shown,) = (line for line in text.splitlines() if line.startswith("headrace_trainer_reward_mean{"))
    assert float(shown.split()[-1]) == steps[2].metrics["reward_mean"]
    assert "reward 1.5, loss " in log
    assert "next weights in about" in log
    assert [*(tmp_path / "runs" / "filed").glob("events.out.*")]
    assert (tmp_path / "checkpoints" / "filed").is_dir()


def test_a_supervised_stage_requires_a_learning_rate_unless_the_model_is_the_shipped_one(
    tmp_path: Path,
) -> None:
    known = {"bootstrap": "b:1", "out": str(tmp_path / "out")}
    assert stage_config("rft", None, [], known | {"model_dir": str(base_model_dir())}).training.optimizer
    own = known | {"model_dir": str(tmp_path)}
    with pytest.raises(StackError, match=r"training.optimizer.learning_rate is not set.*1e-5"):
        stage_config("rft", None, ["training.steps=5"], own)
    config = stage_config("rft", None, ["training.optimizer.learning_rate=1e-5"], own)
    assert (config.training.optimizer.learning_rate, config.training.optimizer.betas) == (1e-5, (0.9, 0.98))
    warmed = stage_config(
        "rft", None, ["training.schedule.warmup_steps=7"], known | {"model_dir": str(base_model_dir())}
    )
    assert (warmed.training.schedule.warmup_steps, warmed.training.schedule.shape) == (7, "cosine")
    assert warmed.training.optimizer.learning_rate == 3e-3
