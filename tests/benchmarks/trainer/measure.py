"""Steps of all contenders on one shape, interleaved."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.trainer.contenders import PEERS
from tests.benchmarks.trainer.shapes import Shape, flops
from tests.conftest import CACHE
from tests.trainer.losses.references import references

Figures = dict[str, Any]

ROOT = Path(__file__).parents[3]


class ContenderEnded(RuntimeError):
    """A contender's process ended unexpectedly; the message is the end of its output."""

    def __init__(self, errors: str) -> None:
        super().__init__(f"a contender ended:\n{errors[-3000:]}")
        self.reason = next((line for line in reversed(errors.splitlines()) if line.strip()), "no output")
        """The last line, which in a traceback is the error."""


class Worker:
    """A contender's process."""

    def __init__(self, contender: str, shape: Shape, model_dir: Path, division: int, threads: int) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.trainer.worker", contender, shape.name, str(model_dir)]
        self.division = division
        # Not a pipe: an unread pipe would block a process with much output. Closed by end() and kill().
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, str(division)], cwd=ROOT, env=environment(threads), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def step(self) -> Figures:
        """One step's figures."""
        return self._ask("step")

    def end(self) -> Figures:
        """End the process; returns its peak memory."""
        last = self._ask("end")
        self._process.wait(60)
        self._errors.close()
        return last

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _ask(self, what: str) -> Figures:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            process.wait(60)
            self._errors.seek(0)
            raise ContenderEnded(self._errors.read())
        answer: Figures = json.loads(line)
        return answer


def environment(threads: int) -> dict[str, str]:
    """Environment of a contender's process."""
    added = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    if "TRL_FOLDER" not in os.environ:
        added["TRL_FOLDER"] = str(references())
    # TRL's imports take half a minute without bytecode, and its folder is shared with the tests of the losses.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | added | {"PYTHONPYCACHEPREFIX": str(CACHE / "bytecode")}


def measure(shape: Shape, rounds: int, threads: int, folder: Path, say: Callable[[str], None]) -> Figures:
    """``rounds`` steps of each contender with its fastest division, interleaved."""
    model_dir = folder / shape.name
    weights = make_model(shape, model_dir)
    rollouts = shape.rollouts()
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    sampled = sum(sum(rollout.loss_mask) for rollout in rollouts)
    chosen: dict[str, Worker] = {}
    first: dict[str, Figures] = {}
    for name in PEERS:
        tried = []
        for division in shape.passes if name == "headrace" else shape.micro_batches:
            worker = Worker(name, shape, model_dir, division, threads)
            first[name] = worker.step()
            # By CPU time, which other programs affect less.
            tried.append((min(worker.step()["cpu_s"] for _ in range(2)), worker))
            say(f"{name}, {division}: {tried[-1][0]:.2f} s a step")
        tried.sort(key=lambda each: each[0])
        chosen[name] = tried[0][1]
        for _, worker in tried[1:]:
            worker.end()
    samples: dict[str, list[Figures]] = {name: [] for name in PEERS}
    for _ in range(rounds):
        for name, worker in chosen.items():
            samples[name].append(worker.step())
    peaks = {name: worker.end()["peak_mib"] for name, worker in chosen.items()}
    return {
        "title": shape.title,
        "threads": threads,
        "weights": weights,
        "trajectories": len(rollouts),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "sampled": sampled,
        "flops": flops(shape, lengths, sampled),
        "samples": samples,
        "first": first,
        "divisions": {name: worker.division for name, worker in chosen.items()},
        "peak_mib": peaks,
        "profile": profile(shape, model_dir, chosen["headrace"].division, threads),
    }


def profile(shape: Shape, model_dir: Path, division: int, threads: int) -> dict[str, float]:
    """Time profile of our step: shares by purpose."""
    command = [sys.executable, "-m", "tests.benchmarks.trainer.profile", shape.name, str(model_dir), str(division)]
    done = subprocess.run(command, cwd=ROOT, env=environment(threads), capture_output=True, text=True, check=True)
    shares: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return shares


def make_model(shape: Shape, folder: Path) -> int:
    """Write a random Qwen3 of the shape with a placeholder tokenizer; returns its number of weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    with torch.device(shape.device):
        model = Qwen3ForCausalLM(Qwen3Config(**shape.config)).to(getattr(torch, shape.dtype))
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(200)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w1", pad_token="w0").save_pretrained(
        folder
    )
    return sum(parameter.numel() for parameter in model.parameters())
