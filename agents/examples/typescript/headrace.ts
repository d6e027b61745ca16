/**
 * Records what an agent does as headrace's events, in Kafka. Copy this file and payloads.ts into your project.
 *
 *     const headrace = new Headrace({ source: "checkout-helper", consent: true }); // HEADRACE_KAFKA
 *     await headrace.trajectory({ task_id: "order-17", agent: "checkout" }, async (t) => {
 *       const found = await t.tool("search", { query: "size 44" }, () => search("size 44"));
 *       t.modelCalled({ model: "gpt-4o", messages: [{ role: "assistant", content: "We have both." }] });
 *       t.end({ answer: "in stock", outcome: 1 });
 *     });
 *     await headrace.close();
 *
 * Nothing here throws into the agent, or waits for Kafka, except `flush` and `close`. Events that are lost are counted
 * in `headrace.dropped` by reason, and are missing numbers in their trajectory.
 */
import { createHash, randomBytes } from "node:crypto";
import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import {
  type BaseOptions,
  compatibilityPartitioner,
  findErrorBy,
  Producer,
  stringSerializer,
} from "@platformatic/kafka";
import type {
  FeedbackGiven,
  ModelCalled,
  Payloads,
  ToolErrorClass,
  TrajectoryEnded,
  TrajectoryStarted,
} from "./payloads.ts";

export type EventType = keyof Payloads;
export type DropReason =
  | "invalid" // not JSON: a cycle, a bigint, a number that is not finite
  | "oversize" // more than `maxEventBytes`
  | "queue_full" // Kafka has been away for too long
  | "refused" // by the broker, for its size or content
  | "after_end"
  | "closed"
  | "unsent_at_close";

export interface Options {
  /** Name of this program, in every event. */
  source: string;
  /** Whether trajectories that say nothing else may be trained on. */
  consent: boolean;
  /** Kafka address, `host:port`, several separated by commas. Default: the environment variable HEADRACE_KAFKA. */
  bootstrap?: string;
  /** Further options of the Kafka client: `tls`, `sasl`. */
  kafka?: Partial<BaseOptions>;
  maxEventBytes?: number;
  queueEvents?: number;
  queueBytes?: number;
}

interface Message {
  topic: "events" | "feedback";
  key: string;
  value: Buffer;
  headers: Record<string, string>;
}

const BATCH_EVENTS = 500;
const BATCH_BYTES = 512 * 1024;
/** A second apart: an idempotent producer repeats a batch under its numbers, so that Kafka stores it once. */
const RETRIES = 300;
/** Errors for which the broker will never take a record. */
const REFUSALS = ["MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "CORRUPT_MESSAGE"];

export class Headrace {
  /** Events that were lost, by reason. */
  readonly dropped = new Map<DropReason, number>();
  readonly consent: boolean;
  readonly #source: string;
  readonly #limits: { event: number; events: number; bytes: number };
  readonly #producer: Producer<string, Buffer, string, string>;
  #queue: Message[] = [];
  #bytes = 0;
  #sending: Promise<void> | undefined;
  #closed = false;
  #closing: Promise<boolean> | undefined;

  constructor({ source, consent, bootstrap = process.env["HEADRACE_KAFKA"] ?? "", kafka, ...limits }: Options) {
    if (!bootstrap) throw new Error("no Kafka address: pass `bootstrap`, or set HEADRACE_KAFKA");
    if (!source) throw new Error("source is empty: expected the name of the program");
    this.consent = consent;
    this.#source = source;
    this.#limits = {
      event: limits.maxEventBytes ?? 1024 * 1024,
      events: limits.queueEvents ?? 10_000,
      bytes: limits.queueBytes ?? 64 * 1024 * 1024,
    };
    this.#producer = new Producer<string, Buffer, string, string>({
      clientId: "headrace",
      bootstrapBrokers: bootstrap.split(",").map((server) => server.trim()),
      idempotent: true,
      retries: RETRIES,
      compression: "zstd",
      // The default differs from Kafka's own where the number of partitions is not a power of two: it would split a
      // trajectory over two partitions if another client writes to it, too.
      partitioner: compatibilityPartitioner,
      serializers: {
        key: stringSerializer,
        value: (value) => value,
        headerKey: stringSerializer,
        headerValue: stringSerializer,
      },
      ...kafka,
    });
  }

  /** Runs `work` as an attempt at a task, which ends with it: as completed, or as failed if it throws. */
  async trajectory<Result>(
    start: TrajectoryStarted,
    work: (trajectory: Trajectory) => Promise<Result>,
  ): Promise<Result> {
    const trajectory = this.begin(start);
    try {
      return await work(trajectory);
    } catch (error) {
      if (!trajectory.ended) trajectory.end({ status: isAbort(error) ? "aborted" : "failed", error: described(error) });
      throw error;
    } finally {
      if (!trajectory.ended) trajectory.end();
    }
  }

  /** Begins an attempt that the caller ends with `end`. */
  begin(start: TrajectoryStarted): Trajectory {
    return new Trajectory(this, start);
  }

  /** Records a judgement of a trajectory, at any time and from any process. */
  feedback(trajectoryId: string, signal: string, value: number, more: Partial<FeedbackGiven> = {}): void {
    this.emit("headrace.feedback.given.v1", trajectoryId, undefined, { signal, value, ...more });
  }

  /** Queues an event; `sequence` is its position in the trajectory, which feedback does not have. */
  emit<Type extends EventType>(
    type: Type,
    trajectoryId: string,
    sequence: number | undefined,
    payload: Payloads[Type],
  ): void {
    if (this.#closed) return this.drop("closed", type);
    let value: Buffer;
    try {
      value = Buffer.from(json(payload));
    } catch (error) {
      return this.drop("invalid", `${type}: ${described(error)}`);
    }
    if (value.length > this.#limits.event) return this.drop("oversize", `${type} of ${value.length} bytes`);
    if (this.#queue.length >= this.#limits.events || this.#bytes + value.length > this.#limits.bytes) {
      return this.drop("queue_full", `${this.#queue.length} events wait for Kafka`);
    }
    const now = Date.now();
    this.#queue.push({
      topic: type === "headrace.feedback.given.v1" ? "feedback" : "events",
      key: trajectoryId,
      value,
      headers: {
        ce_specversion: "1.0",
        ce_id: uuid7(now),
        ce_type: type,
        ce_source: this.#source,
        ce_time: new Date(now).toISOString(),
        ce_subject: trajectoryId,
        "content-type": "application/json",
        ...(sequence === undefined ? {} : { ce_sequence: `${sequence}` }),
      },
    });
    this.#bytes += value.length;
    this.#sending ??= this.#send().finally(() => (this.#sending = undefined));
  }

  /** Counts a lost event, and warns of the first one of each reason. */
  drop(reason: DropReason, what: string, events = 1): void {
    const before = this.dropped.get(reason) ?? 0;
    this.dropped.set(reason, before + events);
    if (!before) process.emitWarning(`lost ${events} (${reason}): ${what}`, { type: "HeadraceWarning" });
  }

  /** Waits until everything is sent or lost; false if `timeoutMs` passed first. */
  async flush(timeoutMs = 5000): Promise<boolean> {
    const timer = new AbortController();
    const late = sleep(timeoutMs, undefined, { signal: timer.signal }).catch(() => {});
    await Promise.race([this.#sending, late]);
    timer.abort();
    return this.#queue.length === 0;
  }

  /** Flushes and ends the connection, without which the process does not exit; false if events were left unsent. */
  close(timeoutMs = 5000): Promise<boolean> {
    return (this.#closing ??= this.#close(timeoutMs));
  }

  async #close(timeoutMs: number): Promise<boolean> {
    this.#closed = true;
    const isComplete = await this.flush(timeoutMs);
    if (!isComplete) {
      this.drop("unsent_at_close", `not acknowledged within ${timeoutMs} ms`, this.#queue.length);
      this.#queue = [];
    }
    await this.#producer.close(true);
    return isComplete;
  }

  /** Sends the queue, a batch at a time and in order, until it is empty. Never rejects. */
  async #send(): Promise<void> {
    await nextTurn(); // an agent often records several events at once
    let most = BATCH_EVENTS;
    while (this.#queue.length) {
      const batch = this.#queue.slice(0, this.#batchLength(most));
      try {
        await this.#producer.send({ messages: batch });
        most = BATCH_EVENTS;
      } catch (error) {
        if (this.#closed && this.#queue.length === 0) return;
        const refusal = REFUSALS.find((each) => findErrorBy(error as Error, "apiId", each));
        if (!refusal || batch.length > 1) {
          most = 1; // a refused record is found by sending them one by one; readers ignore what was stored before
          if (!refusal) await sleep(1000, undefined, { ref: !this.#closed });
          continue;
        }
        this.drop("refused", `${batch[0]?.headers["ce_type"]}: ${refusal}`);
      }
      this.#queue.splice(0, batch.length);
      this.#bytes -= batch.reduce((sum, { value }) => sum + value.length, 0);
    }
  }

  #batchLength(most: number): number {
    let bytes = 0;
    const length = this.#queue.findIndex(({ value }, index) => index >= most || (bytes += value.length) > BATCH_BYTES);
    return length < 0 ? this.#queue.length : Math.max(length, 1);
  }
}

/** One attempt at a task. Its events are numbered before anything can be lost, so that a loss is a visible gap. */
export class Trajectory {
  /** Key and subject of its events. */
  readonly id = uuid7(Date.now());
  ended = false;
  readonly #headrace: Headrace;
  #sequence = 0;
  #calls = 0;

  constructor(headrace: Headrace, start: TrajectoryStarted) {
    this.#headrace = headrace;
    this.emit("headrace.trajectory.started.v1", { consent: headrace.consent, ...start });
  }

  /** Records a model call and its answer: what is new in `messages`, and the answer, in OpenAI's format. */
  modelCalled(call: ModelCalled): void {
    this.emit("headrace.model.called.v1", call);
  }

  /** Runs a tool and records its call and its result, or its error, which is thrown on. */
  async tool<Result>(
    tool: string,
    args: Record<string, unknown>,
    work: () => Result | Promise<Result>,
    call_id = `c${++this.#calls}`,
  ): Promise<Result> {
    this.emit("headrace.tool.called.v1", { call_id, tool, arguments: args });
    const started = performance.now();
    const returned = (more: Partial<Payloads["headrace.tool.returned.v1"]>) => {
      const latency_s = (performance.now() - started) / 1000;
      this.emit("headrace.tool.returned.v1", { call_id, tool, latency_s, ...more });
    };
    try {
      const result = await work();
      returned({ status: "ok", result });
      return result;
    } catch (error) {
      returned({ status: "error", error_class: errorClass(error), result: errorOf(error) });
      throw error;
    }
  }

  /** Ends the attempt; later events are lost (`after_end`). */
  end(end: TrajectoryEnded = {}): void {
    this.emit("headrace.trajectory.ended.v1", { status: "completed", ...end });
    this.ended = true;
  }

  /** Records any event, such as `headrace.context.pruned.v1`. */
  emit<Type extends EventType>(type: Type, payload: Payloads[Type]): void {
    if (this.ended) return this.#headrace.drop("after_end", type);
    this.#headrace.emit(type, this.id, this.#sequence++, payload);
  }
}

/** Token ids as events hold them: base64 of little-endian int32. Throws a `RangeError` for what is none. */
export function tokenIds(ids: readonly number[]): string {
  return int32(ids).toString("base64");
}

/** Log-probabilities as events hold them: base64 of little-endian float32. */
export function logprobs(values: readonly number[]): string {
  const bytes = Buffer.alloc(4 * values.length);
  values.forEach((value, index) => bytes.writeFloatLE(value, 4 * index));
  return bytes.toString("base64");
}

/** `prefix_sha256` of a call whose context begins with `ids`: context and answer of an earlier call. */
export function prefixHash(ids: readonly number[]): string {
  return createHash("sha256").update(int32(ids)).digest("hex");
}

function int32(ids: readonly number[]): Buffer {
  const bytes = Buffer.alloc(4 * ids.length);
  ids.forEach((id, index) => bytes.writeInt32LE(id, 4 * index));
  return bytes;
}

/** A UUID of version 7: 48 bits of Unix milliseconds, then random bits. */
function uuid7(unixMs: number): string {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(unixMs, 0, 6);
  bytes[6] = 0x70 | (bytes.readUInt8(6) & 0x0f);
  bytes[8] = 0x80 | (bytes.readUInt8(8) & 0x3f);
  return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** JSON that headrace reads: of finite numbers, and of valid Unicode. Throws for anything else. */
function json(payload: object): string {
  const text = JSON.stringify(payload, (_, value) => {
    if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`${value} is not a finite number`);
    return value;
  });
  // JSON.stringify escapes halves of surrogate pairs, and only them: \ud83d without its other half becomes U+FFFD.
  return text.replace(/\\(\\|ud[89a-f]..)/g, (found) => (found === "\\\\" ? found : "\ufffd"));
}

function isAbort(error: unknown): boolean {
  return error instanceof Error && error.name === "AbortError";
}

function errorClass(error: unknown): ToolErrorClass {
  if (isAbort(error)) return "aborted";
  return error instanceof Error && error.name === "TimeoutError" ? "timeout" : "environment";
}

function errorOf(error: unknown): { error: string; message: string } {
  const [name, message] = error instanceof Error ? [error.name, error.message] : [typeof error, String(error)];
  return { error: name, message: message.slice(0, 1000) };
}

function described(error: unknown): string {
  const { error: name, message } = errorOf(error);
  return `${name}: ${message}`;
}
