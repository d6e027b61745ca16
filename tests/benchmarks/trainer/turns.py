"""A contender's process takes one step per command, so that all contenders run under the same load of the machine.

parent → worker   step                      end
worker → parent   {"wall_s": …, "cpu_s": …, "loss": …, "grad_norm": …}    {"peak_mib": …}
"""

import json
import os
import time
from pathlib import Path
from typing import IO, Any

import torch


class Turns:
    """The worker's side."""

    def __init__(self, commands: IO[str], reports: IO[str]) -> None:
        self._commands, self._reports = commands, reports
        self._began: tuple[float, float] | None = None
        self._took: dict[str, float] = {}
        self._before_mib = 0.0

    def begin(self) -> None:
        """Wait for the next command; the process exits if there is none."""
        if self._began is None:
            self._before_mib = _reset_peak()
        if self._commands.readline().strip() != "step":
            self._write({"peak_mib": _peak() - self._before_mib})
            os._exit(0)
        self._began = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Stop the clock at the end of the step."""
        assert self._began is not None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        wall, cpu = self._began
        self._took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}

    def report(self, loss: float, grad_norm: float) -> None:
        """Report the time taken and the results."""
        self._write({**self._took, "loss": float(loss), "grad_norm": float(grad_norm)})

    def _write(self, what: dict[str, Any]) -> None:
        self._reports.write(json.dumps(what) + "\n")
        self._reports.flush()


def _reset_peak() -> float:
    """Reset the peak; returns the MiB held now."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return 0.0  # the peak includes the weights, because the GPU's memory must hold everything
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mib("VmRSS")


def _peak() -> float:
    """Peak MiB since the reset."""
    return torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else _status_mib("VmHWM")


def _status_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))
