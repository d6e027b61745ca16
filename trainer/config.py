"""The trainer's settings: one frozen object, validated when it is created.

Each package takes a settings value of its own, which ``TrainerConfig`` makes from the published names (``learner``,
``model``, ``checkpoints``, ``budget``): only the loop and the commands use all of it.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.schemas.objects.store_url import scheme_of
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
from headrace.trainer.losses.settings import CorrectionSettings, HintSettings, KlSettings, LossSettings
from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.lora import LoraSettings
from headrace.trainer.model.settings import ModelSettings
from headrace.trainer.parallel.settings import ParallelSettings
from headrace.trainer.progress.settings import WriterSettings
from headrace.trainer.retries.retry import OutageSettings
from headrace.trainer.weights.canary import MAX_CANARY_TOKENS

_NOT_HASHED = frozenset(
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
"""Settings of where and how long to train, not of what is learnt: excluded from the hash."""


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Settings of one trainer; an invalid setting raises ``ValueError`` naming it."""

    bootstrap: str
    """Kafka's address."""
    run: str
    """Training run: groups of this run are trained, and versions are published under this name."""
    model_dir: Path
    """Hugging Face directory of the base model: version 0."""
    checkpoint_dir: Path
    """Folder of this run's checkpoints, used by one trainer at a time. Ranks on several machines must share it."""
    store_url: str
    """Object store for the weights: ``file:///…``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``; credentials and
    endpoint come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``, …)."""
    signing_key: Path | None = None
    """File of the Ed25519 private key that signs versions, created at the first start; followers must trust its public
    key, which ``headrace keys`` prints. Unset: ``signing-key.pem`` in ``checkpoint_dir``; the commands set
    DATA/keys/trainer.pem."""
    groups_per_step: int = 16
    """Admitted groups of an optimiser step."""
    loss: str = "cispo"
    """Name of the loss in the registry."""
    loss_settings: LossSettings = field(default_factory=LossSettings)
    """Changes to the loss as published: {"clip_high": 0.25}."""
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)
    """Weights and masks for tokens that another policy sampled: {"importance": "truncate"}."""
    kl: KlSettings = field(default_factory=KlSettings)
    """KL penalty for leaving a reference policy: {"coefficient": 0.01}."""
    hints: HintSettings = field(default_factory=HintSettings)
    """Distillation of hints into the turns that they are for: {"weight": 0.1}."""
    constant_length: int = 64
    """Tokens by which the normaliser ``constant_length``, that of cispo and dr_grpo, divides every trajectory's
    objective, whatever its length."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """The optimiser: {"learning_rate": 1e-6, "name": "muon"}."""
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    """The learning rate over the steps: {"shape": "cosine", "warmup_steps": 20, "decay_steps": 1000}."""
    alarms: AlarmSettings = field(default_factory=AlarmSettings)
    """Bounds on a step's metrics beyond which an alert is published: {"kl_k3_above": 0.2}."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    divergence: DivergenceSettings = field(default_factory=DivergenceSettings)
    """When a step counts as diverged and is rolled back, and what follows: {"max_norm_ratio": 20}."""
    plausibility: PlausibilitySettings = field(default_factory=PlausibilitySettings)
    """When recorded log-probabilities count as implausible: {"too_low": 16}."""
    substeps: int = 1
    """Gradient steps into which a batch is divided; each token is in one of them."""
    max_staleness: int = 4
    """Staleness bound: versions between a member's oldest token and the trained policy; older members are rejected."""
    admission: AdmissionBounds = field(default_factory=AdmissionBounds)
    """Bounds in tokens on what is admitted: {"stale_after": 1, "max_stale_share": 0.5}."""
    max_steps_ahead: int | None = None
    """AReaL's η: samplers may have the groups of this many steps in flight in addition to the next step's; granted on
    the topic ``budget``. Unset: ``max_staleness``. Lower values give fresher data, higher values keep engines
    busier."""
    shuffle_advantages: bool = False
    """Control experiment: permutes the advantages inside each group."""
    steps: int | None = None
    """Stop training after this many steps (the process keeps running); unset: never."""
    seed: int = 0
    """Seed of all random numbers."""
    max_tokens_per_pass: int = 8192
    """Tokens of a micro-batch (one forward and backward pass): bounds memory only. Small ones suit a CPU's caches."""
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    """How several ranks, started by ``torchrun``, work together: {"timeout_s": 120}."""
    threads: int = 2
    """Torch threads on a CPU."""
    device: str = "cpu"
    """Torch device."""
    dtype: str = "float32"
    """Type in which passes compute and weights are published: ``float32`` or ``bfloat16``. The trained weights, their
    gradients and the log-probabilities are float32 in both cases."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """Adapters to train instead of all weights: {"rank": 16, "targets": ["q_proj", "v_proj"]}."""
    layers: LayerSettings = field(default_factory=LayerSettings)
    """How layers are computed: {"activation_checkpointing": true}."""
    canaries: int | None = None
    """Canaries: token sequences published with each version, whose log-probabilities engines must reproduce. Unset: 4,
    or 64 with bfloat16 weights, because their rounding hides differences on few tokens."""
    canary_length: int | None = None
    """Tokens of each canary, limited by the model's longest sequence; unset: 32, or 64 with bfloat16 weights."""
    outages: OutageSettings = field(default_factory=OutageSettings)
    """Retries while the disk is full, or the object store or the broker unavailable: {"patience_s": 600}."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints kept on disk."""
    duplicate_window: int = 10_000
    """Records of ``training``, per partition, in which a repeated group is recognised."""
    writers: WriterSettings = field(default_factory=WriterSettings)
    """Further destinations of each step's metrics: {"tensorboard_dir": "runs"}."""

    def __post_init__(self) -> None:
        self.chosen_loss()  # raises if settings contradict each other
        if not re.fullmatch(RUN_NAME, self.run):
            raise ValueError(f"run {self.run!r}: use up to 100 letters, digits, dots, dashes and underscores")
        scheme_of(self.store_url)  # raises for an invalid address
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
        """Number of canaries, and the tokens of each."""
        count, length = (64, 64) if self.dtype == "bfloat16" else (4, 32)
        return (
            count if self.canaries is None else self.canaries,
            length if self.canary_length is None else self.canary_length,
        )

    @property
    def signing_key_file(self) -> Path:
        """File of the signing key."""
        return self.signing_key or self.checkpoint_dir / "signing-key.pem"

    def chosen_loss(self) -> Loss:
        """Returns the loss with its settings applied."""
        return loss_named(self.loss, self.loss_settings, self.correction)

    @property
    def model(self) -> ModelSettings:
        """Settings for loading the models."""
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
        """Settings of the learner."""
        return LearnerSettings(
            model=self.model,
            loss=self.chosen_loss(),
            correction=self.correction,
            kl=self.kl,
            hints=self.hints,
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
        """Settings for writing a checkpoint."""
        return CheckpointSettings(
            run=self.run,
            folder=self.checkpoint_dir,
            keep=self.keep_checkpoints,
            canary_seed=self.seed,
            dtype=self.dtype,
            model_name=self.model_dir.name,
            config_sha256=self.sha256(),
        )

    @property
    def budget(self) -> BudgetSettings:
        """Settings of the budget; η is ``max_steps_ahead``, or ``max_staleness`` if that is unset."""
        return BudgetSettings(
            run=self.run,
            groups_per_step=self.groups_per_step,
            max_steps_ahead=self.max_staleness if self.max_steps_ahead is None else self.max_steps_ahead,
            steps=self.steps,
        )

    @property
    def recipe(self) -> BatchRecipe:
        """How a step's batch is made from its groups; stored in the step's record, so that it can be rebuilt."""
        return BatchRecipe(
            format=BATCH_FORMAT,
            advantage_scale=self.chosen_loss().advantage_scale,
            shuffle_seed=self.seed if self.shuffle_advantages else None,
            max_hinted_turns=self.hints.max_turns if self.hints.weight else 0,
        )

    def sha256(self) -> str:
        """Returns the hash (hex) of the settings that decide what is learnt, as canonical JSON."""
        settings = {name: value for name, value in asdict(self).items() if name not in _NOT_HASHED}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
