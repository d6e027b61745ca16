"""The trainer's settings: one frozen object, checked when it is made.

Each room takes a settings value of its own, which ``TrainerConfig`` makes of the published names (``learner``,
``model``, ``checkpoints``, ``budget``): only the loop and the commands know the whole of it.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.schemas.records.step import BatchRecipe
from headrace.schemas.stamp import RUN_NAME
from headrace.trainer.admission.bounds import AdmissionBounds
from headrace.trainer.admission.budget import BudgetSettings
from headrace.trainer.batches.batch import BATCH_FORMAT
from headrace.trainer.checkpoints.settings import CheckpointSettings
from headrace.trainer.learning.alarms import AlarmSettings
from headrace.trainer.learning.divergence import DivergenceSettings
from headrace.trainer.learning.optimizers import OptimizerName, OptimizerSettings
from headrace.trainer.learning.plausibility import PlausibilitySettings
from headrace.trainer.learning.schedules import ScheduleSettings
from headrace.trainer.learning.settings import LearnerSettings
from headrace.trainer.losses.loss import Loss
from headrace.trainer.losses.registry import loss_named
from headrace.trainer.losses.settings import CorrectionSettings, KlSettings, LossSettings
from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.lora import LoraSettings
from headrace.trainer.model.settings import ModelSettings
from headrace.trainer.parallel.settings import ParallelSettings
from headrace.trainer.progress.settings import WriterSettings
from headrace.trainer.retries.retry import OutageSettings
from headrace.trainer.weights.canary import MAX_CANARY_TOKENS
from headrace.trainer.weights.store_url import scheme_of

_ELSEWHERE = frozenset(
    {
        "bootstrap",
        "model_dir",
        "checkpoint_dir",
        "store_url",
        "signing_key",
        "writers",
        "steps",
        "threads",
        "parallel",
        "keep_checkpoints",
        "max_steps_ahead",
        "alarms",
        "outages",
    }
)
"""Settings that say where and for how long, not what is learnt: left out of the hash."""


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Settings of one trainer; a setting that cannot work raises ``ValueError`` naming it."""

    bootstrap: str
    """Kafka's address."""
    run: str
    """Training run: which groups are ours, and the name of what is published."""
    model_dir: Path
    """Hugging Face directory of the base model: version 0."""
    checkpoint_dir: Path
    """Folder of this run's checkpoints; one trainer at a time. Ranks on several machines must all see it."""
    store_url: str
    """Object store for the weights: ``file:///…``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``; credentials and
    endpoint come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``, …)."""
    signing_key: Path | None = None
    """File of the Ed25519 private key that signs versions, made at the first start; followers must trust its public
    key, which ``headrace keys`` prints. Unset: ``signing-key.pem`` in ``checkpoint_dir``; the commands set
    DATA/keys/trainer.pem."""
    groups_per_step: int = 16
    """Admitted groups an optimiser step waits for."""
    loss: str = "cispo"
    """Name in the registry of losses."""
    loss_settings: LossSettings = field(default_factory=LossSettings)
    """What differs from the loss as published: {"clip_high": 0.25}."""
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)
    """Weights and masks for tokens that another policy sampled: {"importance": "truncate"}."""
    kl: KlSettings = field(default_factory=KlSettings)
    """Penalty for leaving a reference policy: {"coefficient": 0.01}."""
    constant_length: int = 64
    """Tokens by which every trajectory's objective is divided, whatever its length, by the normaliser
    ``constant_length``: that of cispo and dr_grpo."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """What moves the weights: {"learning_rate": 1e-6, "name": "muon"}."""
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    """The learning rate over the steps: {"shape": "cosine", "warmup_steps": 20, "decay_steps": 1000}."""
    alarms: AlarmSettings = field(default_factory=AlarmSettings)
    """Bounds on a step's metrics beyond which a person is told: {"kl_k3_above": 0.2}."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    divergence: DivergenceSettings = field(default_factory=DivergenceSettings)
    """When a step is taken back, and what follows: {"max_norm_ratio": 20}."""
    plausibility: PlausibilitySettings = field(default_factory=PlausibilitySettings)
    """When recorded log-probabilities are not believed: {"too_low": 16}."""
    substeps: int = 1
    """Optimiser updates a batch is divided into; a token is in one of them."""
    max_staleness: int = 4
    """Versions between a member's oldest token and the policy that is trained; older members are rejected."""
    admission: AdmissionBounds = field(default_factory=AdmissionBounds)
    """Bounds in tokens on what is admitted: {"stale_after": 1, "max_stale_share": 0.5}."""
    max_steps_ahead: int | None = None
    """Steps' worth of groups that samplers may have under way beyond the next step's (AReaL's η), as the topic
    ``budget`` tells them; unset: ``max_staleness``. Less is fresher, more keeps engines busier."""
    shuffle_advantages: bool = False
    """The control: advantages dealt out anew inside each group."""
    steps: int | None = None
    """Stop learning after this many steps (and go on serving); unset: never."""
    seed: int = 0
    """Seed of everything drawn."""
    max_tokens_per_pass: int = 8192
    """Tokens of one forward and backward: bounds memory, changes nothing else. Small ones suit a CPU's caches."""
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    """Under ``torchrun``, how its ranks work together: {"timeout_s": 120}."""
    threads: int = 2
    """Torch's threads on a CPU."""
    device: str = "cpu"
    """Torch device."""
    dtype: str = "float32"
    """Type that passes compute in and weights are published in: ``float32`` or ``bfloat16``. The weights that are
    trained, their gradients and the log-probabilities are float32 either way."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """Adapters to train in place of all weights: {"rank": 16, "targets": ["q_proj", "v_proj"]}."""
    layers: LayerSettings = field(default_factory=LayerSettings)
    """What a pass trades for what: {"activation_checkpointing": true}."""
    canaries: int | None = None
    """Token sequences published with each version for engines to reproduce; unset: 4, or 64 with bfloat16 weights,
    whose rounding hides what few tokens would show."""
    canary_length: int | None = None
    """Tokens of each, as far as the model takes so many; unset: 32, or 64 with bfloat16 weights."""
    outages: OutageSettings = field(default_factory=OutageSettings)
    """How it waits for a full disk, an object store or a broker: {"patience_s": 600}."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept on disk."""
    duplicate_window: int = 10_000
    """Records of ``training`` before the current one, per partition, among which a repeated group is recognised."""
    writers: WriterSettings = field(default_factory=WriterSettings)
    """Where else each step's metrics go: {"tensorboard_dir": "runs"}."""

    def __post_init__(self) -> None:
        self.chosen_loss()  # refuses settings that do not go together
        if not re.fullmatch(RUN_NAME, self.run):
            raise ValueError(f"run {self.run!r}: use up to 100 letters, digits, dots, dashes and underscores")
        scheme_of(self.store_url)  # refuses an address of another form
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype {self.dtype!r}: choose float32 or bfloat16")
        for name in ("groups_per_step", "constant_length", "substeps", "max_tokens_per_pass", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        self.schedule.checked()
        if self.lora.rank and self.optimizer.name == OptimizerName.MUON:
            raise ValueError("lora and muon: Muon is for whole matrices, and an adapter is half of one; choose adamw")
        if self.lora.rank and self.dtype == "bfloat16" and not self.chosen_loss().proximal:
            raise ValueError(
                "lora and bfloat16: engines serve the merged weights rounded to bfloat16, in which small adapters are "
                "partly lost, so another policy samples than the one that is trained; correct for it (correction: "
                '{"importance": "truncate"}, or the loss decoupled), or choose dtype float32'
            )
        if not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is {self.max_grad_norm}: it must be above 0")
        if self.max_staleness < 0 or self.duplicate_window < 0 or (self.steps is not None and self.steps < 0):
            raise ValueError("max_staleness, duplicate_window and steps must not be negative")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}: it must be at least 0 and below 2^63")
        if self.max_steps_ahead is not None and self.max_steps_ahead < 0:
            raise ValueError(f"max_steps_ahead is {self.max_steps_ahead}: it must not be negative")
        if self.keep_checkpoints < 1:
            raise ValueError(f"keep_checkpoints is {self.keep_checkpoints}: it must be at least 1")
        count, length = self.canary_shape
        if count < 1 or length < 2 or count * length > MAX_CANARY_TOKENS:
            raise ValueError(
                f"canaries is {count} and canary_length {length}: at least 1 of 2 tokens are needed, and "
                f"{MAX_CANARY_TOKENS} tokens at most"
            )

    @property
    def canary_shape(self) -> tuple[int, int]:
        """How many canaries there are, and the tokens of each."""
        count, length = (64, 64) if self.dtype == "bfloat16" else (4, 32)
        return (
            count if self.canaries is None else self.canaries,
            length if self.canary_length is None else self.canary_length,
        )

    @property
    def signing_key_file(self) -> Path:
        """Where the signing key is."""
        return self.signing_key or self.checkpoint_dir / "signing-key.pem"

    def chosen_loss(self) -> Loss:
        """The loss as the settings have it."""
        return loss_named(self.loss, self.loss_settings, self.correction)

    @property
    def model(self) -> ModelSettings:
        """What loading the models needs to know."""
        return ModelSettings(
            base_dir=self.model_dir,
            device=self.device,
            dtype=self.dtype,
            lora=self.lora,
            layers=self.layers,
            seed=self.seed,
            needs_reference=self.kl.needs_base,
        )

    @property
    def learner(self) -> LearnerSettings:
        """What the learner needs to know."""
        return LearnerSettings(
            model=self.model,
            loss=self.chosen_loss(),
            correction=self.correction,
            kl=self.kl,
            constant_length=self.constant_length,
            optimizer=self.optimizer,
            schedule=self.schedule,
            max_grad_norm=self.max_grad_norm,
            plausibility=self.plausibility,
            substeps=self.substeps,
            max_tokens_per_pass=self.max_tokens_per_pass,
            parallel=self.parallel,
            canary_shape=self.canary_shape,
        )

    @property
    def checkpoints(self) -> CheckpointSettings:
        """What writing a checkpoint needs to know."""
        return CheckpointSettings(
            run=self.run,
            folder=self.checkpoint_dir,
            keep=self.keep_checkpoints,
            canary_seed=self.seed,
            dtype=self.dtype,
            config_sha256=self.sha256(),
        )

    @property
    def budget(self) -> BudgetSettings:
        """What the budget is made of; η is ``max_steps_ahead``, or ``max_staleness`` where that is unset."""
        return BudgetSettings(
            run=self.run,
            groups_per_step=self.groups_per_step,
            max_steps_ahead=self.max_staleness if self.max_steps_ahead is None else self.max_steps_ahead,
            steps=self.steps,
        )

    @property
    def recipe(self) -> BatchRecipe:
        """How a step's batch is made of its groups: kept in the step's record, so that it can be made again."""
        return BatchRecipe(
            format=BATCH_FORMAT,
            advantage_scale=self.chosen_loss().advantage_scale,
            shuffle_seed=self.seed if self.shuffle_advantages else None,
        )

    def sha256(self) -> str:
        """Hash (hex) of the settings that decide what is learnt, as canonical JSON."""
        settings = {name: value for name, value in asdict(self).items() if name not in _ELSEWHERE}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
