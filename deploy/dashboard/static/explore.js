// The page that lists trajectories. Its filters are its address: a link to it is a saved list.
"use strict";

const FATES = ["trained", "rejected", "waiting", "pending", "evaluation", "frozen", "undecided"];
// Column of the table → value of the parameter sort.
const SORTS = { ended_ms: "time", reward: "reward", advantage: "advantage", version: "version", sampled_tokens: "tokens", turns: "turns", signals: "feedback" };
const FIELDS = [
  ["task", "Task", "text", 14], ["group", "Group", "text", 14], ["id", "ID begins with", "text", 12], ["reason", "Reason", "text", 14],
  ["from", "Version from", "number", 5], ["to", "to", "number", 5], ["step", "Step", "number", 5], ["least", "Reward from", "text", 4], ["most", "to", "text", 4],
  ["tokens_from", "Tokens from", "number", 6], ["tokens_to", "to", "number", 6],
];

function sorter(column) {
  const sort = SORTS[column];
  if (!sort) return null;
  const chosen = query();
  const isNow = (chosen.get("sort") || "time") === sort;
  const rising = chosen.get("order") === "rising";
  return [isNow ? (rising ? 1 : -1) : null, () => choose({ sort, order: isNow && !rising ? "rising" : null })];
}

function drawFilters() {
  const chosen = query();
  const form = byId("filters");
  if (form.dataset.drawn === chosen.toString()) return;
  form.dataset.drawn = chosen.toString();
  const fields = FIELDS.map(([name, label, type, size]) => {
    const input = element("input", { name, type, value: chosen.get(name) ?? "", autocomplete: "off" });
    input.style.width = size + 3 + "ch";
    return element("label", {}, label + " ", input);
  });
  const fate = element("select", { name: "fate" }, new Option("all", ""), ...FATES.map((each) => new Option(each, each)));
  fate.value = chosen.get("fate") ?? "";
  const purpose = element("select", { name: "purpose" }, new Option("all", ""), new Option("training", "train"), new Option("evaluation", "evaluate"));
  purpose.value = chosen.get("purpose") ?? "";
  const limit = element("select", { name: "limit" }, ...["200", "1000", "5000"].map((each) => new Option(Number(each).toLocaleString("en-US"), each)));
  limit.value = chosen.get("limit") || "200";
  for (const select of [fate, purpose, limit]) select.addEventListener("change", () => form.requestSubmit());
  const clear = element("button", { type: "button" }, "Clear");
  clear.addEventListener("click", () => choose(Object.fromEntries([...chosen.keys()].filter((name) => name !== "run").map((name) => [name, null]))));
  form.replaceChildren(element("label", {}, "Fate ", fate), element("label", {}, "Purpose ", purpose), ...fields,
    element("label", {}, "Rows ", limit), element("button", { type: "submit" }, "Show"), clear);
}

byId("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = Object.fromEntries(new FormData(event.target));
  choose({ ...given, limit: given.limit === "200" ? null : given.limit });
});

specifications("/explore").then((specs) => {
  let matching = 0;
  const cards = new Cards(byId("cards"), [...specs.values()].filter((spec) => spec.form === "table"), {
    trajectories: {
      links: {
        trajectory_id: (row) => "/trajectory/" + encodeURIComponent(row.trajectory_id),
        task_id: (row) => row.task_id && "/explore?" + new URLSearchParams({ run: row.run, task: row.task_id }),
        step: (row) => row.step && "/explore?" + new URLSearchParams({ run: row.run, step: row.step }),
      },
      table: { sorter, shown: 5000, note: (shown) => `${shown.toLocaleString("en-US")} of ${matching.toLocaleString("en-US")} trajectories that match. Files hold at most 1,000,000.` },
    },
  });
  livePage(({ panels, run }) => {
    document.body.dataset.run = run;
    drawSlices(byId("slices"), panels.choices, { split: false });
    drawFilters();
    matching = panels.trajectories.matching?.[0] ?? 0;
    cards.select({ ...parametersOf(run) }, 0);
    cards.draw(panels);
  }, { every: "all runs" });
}).catch(unreachable);
