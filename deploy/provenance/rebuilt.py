"""Formats a rebuilt step as text for a terminal, and as JSON."""

from dataclasses import asdict
from typing import Any

from headrace.schemas.records.step import BatchRecipe
from headrace.trainer.provenance.evidence import summarise
from headrace.trainer.provenance.rebuild import RebuildResult, Rebuilt

_WORDS = {
    RebuildResult.MATCHES: "matches",
    RebuildResult.DIFFERS: "DIFFERS",
    RebuildResult.INCOMPLETE: "CANNOT BE REBUILT",
    RebuildResult.UNKNOWN_RECIPE: "CANNOT BE REBUILT by this release",
}


def line(rebuilt: Rebuilt) -> str:
    """Returns a step as one line."""
    step = rebuilt.step
    members = sum(len(group.trajectory_ids) for group in step.groups)
    counts = f"{len(step.groups):>5} groups {members:>6} trajectories"
    return f"step {step.step:>6}  {counts}  {step.data_sha256[:12]}  {_WORDS[rebuilt.verdict]}{_why(rebuilt)}"


def page(rebuilt: Rebuilt) -> list[str]:
    """Returns a step as lines, with everything that differs or is missing."""
    step, batch = rebuilt.step, rebuilt.batch
    lines = [f"Step {step.step} of run {step.run}, which made version {step.version}: {_WORDS[rebuilt.verdict]}"]
    members = sum(len(group.trajectory_ids) for group in step.groups)
    lines.append(_row("trained on", f"{len(step.groups):,} groups, {members:,} trajectories"))
    if batch is not None:
        tokens, sampled = len(batch.packed.token_ids), len(batch.packed.targets)
        lines.append(_row("batch", f"{len(batch.packed.lengths):,} sequences, {tokens:,} tokens, {sampled:,} trained"))
    lines.append(_row("recipe", _recipe(step.recipe, rebuilt.assumed)))
    if rebuilt.verdict is RebuildResult.MATCHES:
        return [*lines, _row("sha256", f"{step.data_sha256}, as recorded in the step")]
    lines.append(_row("recorded", step.data_sha256))
    if rebuilt.sha256 is not None:
        lines += [_row("rebuilt", rebuilt.sha256), _row("differing", _differing(rebuilt))]
    if rebuilt.problem is not None:
        lines.append(_row("reason", rebuilt.problem))
    if rebuilt.missing:
        named = len(step.groups) + members
        lines.append(f"  {len(rebuilt.missing):,} of its {named:,} records are missing:")
        lines += [f"    {sentence}" for sentence in summarise(rebuilt.missing)]
    return lines


def as_json(rebuilt: Rebuilt) -> dict[str, Any]:
    """Returns the same content as JSON data."""
    step = rebuilt.step
    return {
        "run": step.run,
        "step": step.step,
        "version": step.version,
        "verdict": rebuilt.verdict.value,
        "data_sha256": step.data_sha256,
        "rebuilt_sha256": rebuilt.sha256,
        "differing": list(rebuilt.differing),
        "problem": rebuilt.problem,
        "missing": [asdict(each) for each in rebuilt.missing],
        "groups": len(step.groups),
        "trajectories": sum(len(group.trajectory_ids) for group in step.groups),
    }


def _why(rebuilt: Rebuilt) -> str:
    if rebuilt.differing:
        return f": {', '.join(rebuilt.differing)}"
    if rebuilt.problem is not None:
        return f": {rebuilt.problem}"
    if rebuilt.missing:
        more = f" (and {len(rebuilt.missing) - 1:,} more)" if len(rebuilt.missing) > 1 else ""
        return f": {summarise(rebuilt.missing[:1])[0]}{more}"
    return ""


def _differing(rebuilt: Rebuilt) -> str:
    known = rebuilt.step.array_sha256
    if not known:
        return "unknown: the step is from a release that did not record the hashes of its arrays"
    if not rebuilt.differing:
        return "none of the arrays: the step's own hash was changed"
    same = [name for name in known if name not in rebuilt.differing]
    return ", ".join(rebuilt.differing) + (f" (equal: {', '.join(same)})" if same else "")


def _recipe(recipe: BatchRecipe | None, assumed: BatchRecipe | None) -> str:
    if recipe is None and assumed is None:
        return "none: the step is from a release that did not record recipes"
    shown = recipe or assumed or BatchRecipe()
    scale = "advantages as in their groups"
    if shown.advantage_scale != "none":
        scale = f"advantages divided by {shown.advantage_scale}"
    shuffled = "" if shown.shuffle_seed is None else f", shuffled by seed {shown.shuffle_seed}"
    return scale + shuffled + (" (assumed: the step has no recipe)" if recipe is None else "")


def _row(label: str, text: str) -> str:
    return f"  {label:<14}{text}"
