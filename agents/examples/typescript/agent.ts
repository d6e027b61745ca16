// A small agent that records what it does. Its model is any endpoint with OpenAI's Chat Completions:
//
//     HEADRACE_KAFKA=localhost:9092 OPENAI_BASE_URL=http://… OPENAI_API_KEY=… node agent.ts order-17 "Boots in 44?"
import { Headrace, type Trajectory } from "./headrace.ts";

const { OPENAI_BASE_URL = "https://api.openai.com/v1", OPENAI_API_KEY = "", OPENAI_MODEL = "gpt-4o" } = process.env;
const [task_id = "order-17", question = "Do you have boots in size 44?"] = process.argv.slice(2);

const STOCK: Record<string, string[]> = { "44": ["boots", "sandals"] };
const TOOLS = [
  {
    type: "function",
    function: {
      name: "search",
      description: "What the shop has in a size.",
      parameters: { type: "object", properties: { size: { type: "string" } }, required: ["size"] },
    },
  },
];

interface Message {
  role: string;
  content: string | null;
  tool_calls?: { id: string; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

async function answer(t: Trajectory): Promise<string> {
  const messages: Message[] = [{ role: "user", content: question }];
  let recorded = 0;
  for (let turn = 0; turn < 8; turn++) {
    const started = performance.now();
    const response = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${OPENAI_API_KEY}`, "content-type": "application/json" },
      body: JSON.stringify({ model: OPENAI_MODEL, messages, tools: TOOLS }),
      signal: stopping.signal,
    });
    if (!response.ok) throw new Error(`the model answers ${response.status}: ${await response.text()}`);
    const { model, usage, choices } = (await response.json()) as {
      model: string;
      usage?: { prompt_tokens: number; completion_tokens: number };
      choices: [{ message: Message; finish_reason: string }];
    };
    const { message, finish_reason } = choices[0];
    messages.push(message);
    t.modelCalled({
      model,
      messages: messages.slice(recorded).map((each) => ({ ...each })), // what the model had not seen, and its answer
      finish_reason,
      latency_s: (performance.now() - started) / 1000,
      ...(usage && { usage }),
    });
    recorded = messages.length;
    if (!message.tool_calls?.length) return message.content ?? "";
    for (const call of message.tool_calls) {
      const args = JSON.parse(call.function.arguments) as { size: string };
      const found = await t.tool(call.function.name, args, () => STOCK[args.size] ?? [], call.id);
      messages.push({ role: "tool", tool_call_id: call.id, content: JSON.stringify(found) });
    }
  }
  throw new Error("no answer after eight turns");
}

const headrace = new Headrace({ source: "checkout-helper", consent: true }); // HEADRACE_KAFKA
const stopping = new AbortController();
process.once("SIGTERM", () => stopping.abort()); // the trajectory ends as aborted, and is sent before the process ends
try {
  await headrace.trajectory({ task_id, agent: "checkout" }, async (t) => {
    const text = await answer(t);
    t.end({ answer: text, outcome: text.includes("boots") ? 1 : 0 });
    console.log(text);
    headrace.feedback(t.id, "accepted", 1); // what a user says later, from any process
  });
} catch (error) {
  if (!stopping.signal.aborted) throw error;
  process.exitCode = 143;
} finally {
  await headrace.close();
}
