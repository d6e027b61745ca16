// Made by generate.ts from headrace's AsyncAPI document.

/**
 * Whether the policy in training sampled the trajectory, or a frozen policy whose output is an observation.
 */
export type Role = "trainable" | "frozen";
/**
 * Purpose of a trajectory: training data, or an evaluation that must never be trained on.
 */
export type Purpose = "train" | "evaluate";
/**
 * Distribution whose log-probabilities an engine reports (vLLM's `--logprobs-mode`).
 */
export type LogprobsOf = "processed" | "raw";
/**
 * Whether a tool call succeeded.
 */
export type ToolStatus = "ok" | "error";
/**
 * Cause of a failed tool call: the policy (invalid arguments), the environment, or the agent's own code.
 */
export type ToolErrorClass = "invalid_arguments" | "refused" | "environment" | "provider" | "aborted" | "timeout";
/**
 * How a trajectory ended, as reported by the agent.
 */
export type EndStatus = "completed" | "budget_exhausted" | "turns_exhausted" | "aborted" | "failed" | "restarted";
/**
 * What a snapshot of an environment contains.
 */
export type SnapshotKind = "files" | "memory";

/**
 * Payloads of the events that agents write, by type.
 */
export interface Payloads {
  "headrace.trajectory.started.v1": TrajectoryStarted;
  "headrace.model.called.v1": ModelCalled;
  "headrace.tool.called.v1": ToolCalled;
  "headrace.tool.returned.v1": ToolReturned;
  "headrace.context.summarized.v1": ContextSummarized;
  "headrace.context.pruned.v1": ContextPruned;
  "headrace.subagent.started.v1": SubagentStarted;
  "headrace.subagent.finished.v1": SubagentFinished;
  "headrace.environment.snapshotted.v1": EnvironmentSnapshotted;
  "headrace.environment.forked.v1": EnvironmentForked;
  "headrace.environment.restored.v1": EnvironmentRestored;
  "headrace.trajectory.ended.v1": TrajectoryEnded;
  "headrace.feedback.given.v1": FeedbackGiven;
}
/**
 * An attempt at a task begins.
 */
export interface TrajectoryStarted {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * The attempted task.
   */
  task_id: string;
  /**
   * Group of attempts at the same prompt, which are compared with one another.
   */
  group_id?: string | null;
  /**
   * Number of attempts in the group.
   */
  group_size?: number | null;
  /**
   * Key that groups single attempts in production, where no prompt is attempted twice.
   */
  cohort_key?: string | null;
  /**
   * Name of the agent.
   */
  agent: string;
  /**
   * Version of the code around the model.
   */
  harness_version?: string;
  /**
   * Training run, or recorded data set, to which the trajectory belongs.
   */
  run?: string;
  role?: Role;
  purpose?: Purpose;
  /**
   * For a sub-agent: the orchestrator's trajectory. For a continuation (`fork_turn` is set): the trajectory that it
   * continues.
   */
  parent_trajectory_id?: string | null;
  /**
   * Whether the user agreed to training on it.
   */
  consent?: boolean;
  /**
   * Owner of the data.
   */
  tenant?: string | null;
  /**
   * Share of the traffic that is recorded.
   */
  sample_rate?: number;
  /**
   * Data that the reward needs and the model must not see (targets, expected answer), and labels for analysis.
   */
  task?: {
    [k: string]: unknown;
  };
  /**
   * For a continuation: after how many model calls of its parent it begins. Its first model call has their tokens as
   * context, without a prefix. null: it continues no other trajectory.
   */
  fork_turn?: number | null;
  /**
   * For a continuation whose parent is trained: group of the parent (with several levels, of the outermost one), in
   * whose partition of `rewards` its own reward is written.
   */
  fork_group_id?: string | null;
  /**
   * The tools that its first model call may use: names, sorted, joined by commas, at most 200 characters
   * (`schemas/tools_offered.py`); empty if there are none or if they are unknown.
   */
  tools_offered?: string;
  [k: string]: unknown;
}
/**
 * A model call and its answer.
 *
 * The context is sent as a difference: `context_ids` follow an exact prefix, identified by length and hash. It is
 * the context of an earlier call of the trajectory with the tokens that this call sampled: usually the previous call,
 * but any one if calls overlap, branch or return to an earlier state. With `prefix_length` 0, `context_ids` are
 * the whole context: at the first call, or after the context was rewritten.
 */
export interface ModelCalled {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * Model name in the request.
   */
  model: string;
  /**
   * Number of leading context tokens that are an earlier call's context and sampled tokens.
   */
  prefix_length?: number;
  /**
   * Hash of the prefix (`prefix_hash`); null if the prefix is empty.
   */
  prefix_sha256?: string | null;
  /**
   * Context tokens after the prefix; null if tokens are unknown (a closed model).
   */
  context_ids?: string | null;
  /**
   * Tokens that the model sampled.
   */
  sampled_ids?: string | null;
  /**
   * Log-probability of each sampled token under the policy that sampled it.
   */
  logprobs?: string | null;
  /**
   * Policy versions that sampled the ranges of `sampled_ids`.
   */
  version_spans?: VersionSpan[];
  sampling?: Sampling;
  /**
   * Why sampling stopped: stop, length, tool_calls, abort.
   */
  finish_reason?: string | null;
  /**
   * New messages of the call and the answer, in OpenAI's format; null if hidden or not used.
   */
  messages?:
    | {
        [k: string]: unknown;
      }[]
    | null;
  /**
   * Names of the fields that the agent redacted before it sent the event.
   */
  hidden?: string[];
  /**
   * Seconds from request to answer.
   */
  latency_s?: number | null;
  usage?: Usage;
  /**
   * Id that the gateway gave the request; all answers to it share the id.
   */
  call_id?: string | null;
  /**
   * Index of this answer among the answers to the request (`n`), each of which is an event of its own.
   */
  choice?: number | null;
  /**
   * Whether the client received the whole answer; null if unknown.
   */
  delivered?: boolean | null;
  [k: string]: unknown;
}
/**
 * The policy version that sampled tokens `[start, end)` of an array.
 */
export interface VersionSpan {
  /**
   * Policy version; null if the engine did not report which weights it served.
   */
  version: number | null;
  /**
   * First token of the span.
   */
  start: number;
  /**
   * One past the last token of the span.
   */
  end: number;
  /**
   * Training run to which the version belongs; null if the engine did not report it.
   */
  run?: string | null;
  [k: string]: unknown;
}
/**
 * Sampling parameters of a model call that were in effect, including defaults of the server.
 *
 * Training needs the distribution that was sampled from. The trainer can reproduce the temperature only; tokens
 * sampled under any other modification are labelled and not trained. The description of each field states what its
 * absence means. Parameters that are not fields here may change the distribution too: if one has a value other than
 * null, the tokens are labelled `unknown_sampling`. Leave out parameters that do not change the distribution.
 */
export interface Sampling {
  /**
   * Temperature; below 0.01 sampling counts as greedy. null: not recorded, and the tokens are labelled
   * `unknown_sampling`.
   */
  temperature?: number | null;
  /**
   * Nucleus sampling; 1 keeps every token.
   */
  top_p?: number;
  /**
   * Number of likeliest tokens to keep; 0 or −1 keeps every token.
   */
  top_k?: number;
  /**
   * Smallest probability relative to the likeliest token; 0 keeps every token.
   */
  min_p?: number;
  /**
   * Largest number of tokens to sample.
   */
  max_tokens?: number | null;
  /**
   * Seed of the engine's sampler, if one was set.
   */
  seed?: number | null;
  /**
   * Subtracted from the logits of tokens that were sampled before; 0: none.
   */
  presence_penalty?: number;
  /**
   * Subtracted from the logits of tokens once per earlier occurrence; 0: none.
   */
  frequency_penalty?: number;
  /**
   * Divisor of the logits of tokens that occurred before; 1: none.
   */
  repetition_penalty?: number;
  /**
   * Number of tokens before which no end token is sampled; 0: none.
   */
  min_tokens?: number;
  /**
   * Other parameters that changed the distribution, by the engine's names: `logit_bias`, `structured_output`,
   * `bad_words`, `no_repeat_ngram` …
   */
  altered_by?: string[];
  /**
   * Which log-probabilities were recorded. At temperature 1 without modifications both kinds are the same; at other
   * temperatures `raw` and null (not recorded) are labelled `unknown_sampling`.
   */
  logprobs?: LogprobsOf | null;
  [k: string]: unknown;
}
/**
 * Token counts of a model call, as reported by the engine.
 */
export interface Usage {
  /**
   * Tokens of the prompt; 0 if they were not counted.
   */
  prompt_tokens?: number;
  /**
   * Tokens sampled; 0 if they were not counted, or if there are none.
   */
  completion_tokens?: number;
  [k: string]: unknown;
}
/**
 * The agent called a tool.
 */
export interface ToolCalled {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * Id that pairs the call with its return, unique within the trajectory.
   */
  call_id: string;
  /**
   * Name of the tool.
   */
  tool: string;
  /**
   * Parsed arguments; `{"raw": …}` if the model's text could not be parsed.
   */
  arguments?: {
    [k: string]: unknown;
  };
  /**
   * Tokens that the model sampled before this call as thinking about it; null: not distinguished from the
   * call.
   */
  thinking_tokens?: number | null;
  [k: string]: unknown;
}
/**
 * A tool returned its result or failed.
 */
export interface ToolReturned {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * Id of the call.
   */
  call_id: string;
  /**
   * Name of the tool.
   */
  tool: string;
  status?: ToolStatus;
  /**
   * Cause of a failure.
   */
  error_class?: ToolErrorClass | null;
  /**
   * Result of the tool, as JSON.
   */
  result?: unknown;
  /**
   * Seconds from call to return.
   */
  latency_s?: number | null;
  /**
   * How `result` was produced, if the tool is a generator.
   */
  stream?: Streamed | null;
  [k: string]: unknown;
}
/**
 * A result that was produced item by item.
 */
export interface Streamed {
  /**
   * Number of items.
   */
  items?: number;
  /**
   * Number of leading items that the event contains: texts joined, other items as a list.
   */
  kept?: number;
  /**
   * Seconds from the first request to the first item; null without an item.
   */
  first_item_s?: number | null;
  /**
   * Seconds from the first request to the end, including the time in which nobody requested an item.
   */
  seconds?: number | null;
  /**
   * Whether the stream ended by itself; otherwise its reader stopped, or it failed.
   */
  complete?: boolean;
  [k: string]: unknown;
}
/**
 * The context was replaced by a summary.
 */
export interface ContextSummarized {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * The summary; null if hidden.
   */
  summary?: string | null;
  /**
   * Context length before, in tokens.
   */
  tokens_before: number;
  /**
   * Context length after, in tokens.
   */
  tokens_after: number;
  /**
   * Number of the summary in its trajectory, from 1: a trajectory with n summaries is a chain of n + 1 generations;
   * null if the agent does not count them.
   */
  chain_index?: number | null;
  /**
   * Tokens that the policy sampled for the summary; null if unknown.
   */
  summary_tokens?: number | null;
  [k: string]: unknown;
}
/**
 * Pieces of the context were removed.
 */
export interface ContextPruned {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * Ids of the removed pieces.
   */
  pruned_ids: string[];
  /**
   * Context length before, in tokens.
   */
  tokens_before: number;
  /**
   * Context length after, in tokens.
   */
  tokens_after: number;
  [k: string]: unknown;
}
/**
 * An orchestrator gave a sub-task to a sub-agent.
 */
export interface SubagentStarted {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * Name of the sub-agent.
   */
  name: string;
  /**
   * The sub-agent's own trajectory.
   */
  sub_trajectory_id: string;
  /**
   * The orchestrator's turn; sub-agents of one stage run in parallel.
   */
  stage?: number;
  [k: string]: unknown;
}
/**
 * A sub-agent finished.
 */
export interface SubagentFinished {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * Name of the sub-agent.
   */
  name: string;
  /**
   * The sub-agent's own trajectory.
   */
  sub_trajectory_id: string;
  /**
   * The stage in which it was started.
   */
  stage?: number;
  status?: EndStatus;
  /**
   * Number of its model calls.
   */
  steps?: number;
  [k: string]: unknown;
}
/**
 * The environment's state was frozen. It is the state after the last turn whose model call is before the event.
 */
export interface EnvironmentSnapshotted {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * The snapshot. Equal work from the same parent may have the same snapshot.
   */
  snapshot_id: string;
  /**
   * The snapshot from which the environment started, or that it took before; null for the first one.
   */
  parent_id?: string | null;
  kind?: SnapshotKind;
  /**
   * Digest of the content, in hexadecimal; null if the provider reports none.
   */
  sha256?: string | null;
  /**
   * Provider of sandboxes that can restore it.
   */
  provider?: string;
  /**
   * Milliseconds that it took.
   */
  ms?: number;
  [k: string]: unknown;
}
/**
 * Further environments were started from a snapshot, beside the one of this trajectory.
 */
export interface EnvironmentForked {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * The snapshot from which they started.
   */
  snapshot_id: string;
  /**
   * The snapshot before it.
   */
  parent_id?: string | null;
  kind?: SnapshotKind;
  /**
   * Digest of the content, in hexadecimal; null if the provider reports none.
   */
  sha256?: string | null;
  /**
   * Provider of the sandboxes.
   */
  provider?: string;
  /**
   * Number of environments started.
   */
  forks: number;
  /**
   * Milliseconds that starting all of them took.
   */
  ms?: number;
  [k: string]: unknown;
}
/**
 * The trajectory's environment was started from a snapshot, which another trajectory may have taken.
 */
export interface EnvironmentRestored {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * The snapshot from which it started.
   */
  snapshot_id: string;
  /**
   * The snapshot before it.
   */
  parent_id?: string | null;
  kind?: SnapshotKind;
  /**
   * Digest of the content, in hexadecimal; null if the provider reports none.
   */
  sha256?: string | null;
  /**
   * Provider of the sandbox.
   */
  provider?: string;
  /**
   * Trajectory in which the snapshot was taken, if it is another one.
   */
  source_trajectory_id?: string | null;
  /**
   * Milliseconds that it took.
   */
  ms?: number;
  [k: string]: unknown;
}
/**
 * The attempt ended.
 */
export interface TrajectoryEnded {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  status?: EndStatus;
  /**
   * The final answer, as JSON.
   */
  answer?: unknown;
  /**
   * Verifiable outcome, if the environment knows it; null if the reward computes it.
   */
  outcome?: number | null;
  /**
   * The agent's error message, if the attempt failed.
   */
  error?: string | null;
  /**
   * How `answer` was produced, if the agent is a generator.
   */
  stream?: Streamed | null;
  /**
   * Number of continuations, if it ended in order to be continued by several trajectories: it has no outcome of its
   * own. null or 0: it ended for good.
   */
  continuations?: number | null;
  [k: string]: unknown;
}
/**
 * A person or a system judged a trajectory, possibly long after it ended.
 */
export interface FeedbackGiven {
  /**
   * Number of parts of its texts that were hidden before it was sent, by kind: `email`, `api_key`,
   * `payment_card`, a pattern's name, `function`; `failed` for texts hidden whole because masking them failed.
   */
  masked?: {
    [k: string]: unknown;
  };
  /**
   * Kind of feedback: score, edit_persisted, next_message, accepted, rejected …
   */
  signal: string;
  /**
   * Its value, on the signal's own scale.
   */
  value: number;
  /**
   * Seconds since the trajectory ended, if known.
   */
  delay_s?: number | null;
  /**
   * Comment in words, if given.
   */
  comment?: string | null;
  [k: string]: unknown;
}
