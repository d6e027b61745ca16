"""What is wrong with a trainer that is started on its own, seen from the stack on the same data folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.deploy.errors import StackError
from headrace.deploy.stack.folder_run import last_run
from headrace.deploy.stack.state import StackState, is_locked, read_state

if TYPE_CHECKING:
    from headrace.trainer.config import TrainerConfig


def warnings_about(config: "TrainerConfig", data: Path) -> list[str]:
    """Returns a sentence for each setting with which the trainer would wait for ever, or train what no engine loads.

    The settings of the stack that runs on ``data`` are known; of one that has ended, the name of its run.
    """
    try:
        state = read_state(data) if is_locked(data) else None
        run = last_run(data) if state is None else state.run
    except StackError:  # it is starting or stopping, or its files are damaged, which `headrace up` reports
        return [*_of_model(config)]
    return [*_of_model(config), *_of_run(config, data, run, state), *_of_store(config, state)]


def _of_model(config: "TrainerConfig") -> list[str]:
    if (config.model_dir / "config.json").is_file():
        return []
    return [f"model_dir {config.model_dir} is not a Hugging Face model directory: it has no config.json."]


def _of_run(config: "TrainerConfig", data: Path, run: str | None, state: StackState | None) -> list[str]:
    if run is None or run == config.run:
        return []
    whose = "the stack that runs" if state is not None else "the last stack"
    return [
        f"run is {config.run}, but {whose} on {data} has the run {run}: the trainer would get none of its groups, and "
        f"its engine none of the trainer's versions. Start it with `headrace up --run {config.run}`."
    ]


def _of_store(config: "TrainerConfig", state: StackState | None) -> list[str]:
    if state is None or state.store_url.rstrip("/") == config.store_url.rstrip("/"):
        return []
    return [
        f"store_url is {config.store_url}, but the follower of the stack that runs reads "
        f"{state.store_url}: its engine would get no version. Start the stack with `headrace up --store-url`."
    ]
