"""TRL's and verl's losses on random batches. Run by ``test_references.py`` in a process of its own:

python -m tests.trainer.losses.reference_losses FOLDER CASES.json RESULTS.json

A case names the reference, the seed and options; its result is the loss and its gradient by the real tokens'
log-probabilities. The references are not modified: TRL's trainer gets a model's outputs instead of a model.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.trainer.losses.random_batch import random_batch


def trl_loss(
    logprobs: torch.Tensor,
    anchor: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor | None,
    *,
    loss_type: str,
    epsilon: float = 0.2,
    epsilon_high: float = 0.2,
    level: str = "token",
    constant_length: int = 4,
) -> torch.Tensor:
    """TRL 1.16: ``GRPOTrainer._compute_loss``."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        loss_type=loss_type,
        epsilon_low=epsilon,
        epsilon_high=epsilon_high,
        importance_sampling_level=level,
        max_completion_length=constant_length,
        use_vllm=weights is not None,
        vllm_importance_sampling_correction=weights is not None,
        args=SimpleNamespace(delta=None, steps_per_generation=1),
        beta=0.0,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, **_: x, gather=lambda x: x),
        _metrics={"train": defaultdict(list)},
    )
    inputs = {
        "prompt_ids": torch.zeros(len(logprobs), 1),
        "prompt_mask": torch.ones(len(logprobs), 1),
        "completion_ids": torch.zeros_like(logprobs),
        "completion_mask": mask.float(),
        "advantages": advantages,
        "old_per_token_logps": anchor,
        "importance_sampling_ratio": weights,
        "num_items_in_batch": mask.sum(),
    }
    loss: torch.Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


def verl_loss(
    logprobs: torch.Tensor,
    anchor: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor | None,
    *,
    loss: str,
    mode: str,
    **options: Any,
) -> torch.Tensor:
    """verl 0.9: a policy loss of ``core_algos``."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig, PolicyLossConfig

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        policy_loss=PolicyLossConfig(dro_beta=options.pop("dro_beta", None)),
        **options,
    )
    if mode == "seq-mean-token-sum-norm":
        config.global_batch_info["loss_scale_factor"] = 4
    value, _ = get_policy_loss_fn(loss)(
        old_log_prob=anchor,
        log_prob=logprobs,
        advantages=advantages[:, None] * mask,
        response_mask=mask.float(),
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=weights,
    )
    return value


def verl_weights(
    log_ratio: torch.Tensor, mask: torch.Tensor, *, level: str = "token", threshold: float | str = 2.0
) -> torch.Tensor:
    """verl 0.9: truncated or (IcePop, ``"low_high"``) masked importance weights."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    weights, _ = compute_rollout_correction_weights(
        log_ratio, mask.float(), rollout_is=level, rollout_is_threshold=threshold
    )
    return weights


def verl_mask(log_ratio: torch.Tensor, mask: torch.Tensor, *, kind: str, threshold: str) -> torch.Tensor:
    """verl 0.9: rejection of tokens or sequences, as a mask."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_rejection_mask

    kept, _ = compute_rollout_rejection_mask(log_ratio, mask.float(), rollout_rs=kind, rollout_rs_threshold=threshold)
    return kept


def verl_advantages(rewards: list[float], groups: list[int]) -> list[float]:
    """verl 0.9: GRPO's advantages of single rewards."""
    import numpy as np
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    advantages, _ = compute_grpo_outcome_advantage(
        torch.tensor(rewards)[:, None], torch.ones(len(rewards), 1), np.array(groups)
    )
    found: list[float] = advantages[:, 0].tolist()
    return found


def verl_penalised(rewards: list[float], logprobs: list[float], reference: list[float], beta: float) -> list[float]:
    """verl 0.9: rewards by token less β k1."""
    from verl.trainer.ppo.core_algos import compute_rewards

    found: list[float] = compute_rewards(*map(torch.tensor, (rewards, logprobs, reference)), beta).tolist()
    return found


def evaluate(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the reference's result for a case."""
    if case["reference"] in ("verl_advantages", "verl_penalised"):
        return {"values": globals()[case["reference"]](**case["options"])}
    batch = random_batch(case["seed"], spread=case["spread"])
    logprobs, behaviour, prox, advantages, mask = map(torch.from_numpy, batch)
    if case.get("advantages") is not None:
        advantages = torch.full_like(advantages, case["advantages"])
    logprobs.requires_grad_()
    if case["reference"] == "verl_mask":
        kept = verl_mask(prox - behaviour, mask, **case["options"])
        return {"values": kept[mask].bool().tolist()}
    weights = None if case["weights"] is None else verl_weights(prox - behaviour, mask, **case["weights"])
    if weights is not None and case["masked"]:  # verl divides by the kept tokens if its rejection gets the bounds
        mask = mask & (weights > 0)
    anchor = behaviour if weights is None and not case["proximal"] else prox
    references = {"trl": trl_loss, "verl": verl_loss}
    loss = references[case["reference"]](logprobs, anchor, advantages, mask, weights, **case["options"])
    loss.backward()
    assert logprobs.grad is not None
    return {"loss": loss.item(), "gradient": logprobs.grad[torch.from_numpy(batch.mask)].tolist()}


def main(folder: str, cases: str, results: str) -> None:
    """Compute every case of a file with the references in ``folder``."""
    sys.path.append(folder)  # at the end: it brings a package named tests
    answers = [evaluate(case) for case in json.loads(Path(cases).read_text())]
    Path(results).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
