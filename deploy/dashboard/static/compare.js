// The page that compares two sides: ranges of policy versions of one run or of two, or slices of them.
"use strict";

const SIDES = { a: "A", b: "B" };
const signed = (format) => (value) => (value == null ? "–" : (value < 0 ? "−" : value > 0 ? "+" : "") + format(Math.abs(value)));
const minused = (value) => formats.number(value).replace(/^-/, "−");

// A difference with its interval: clear if the interval does not hold 0.
function drawCompared(panel, held) {
  const rows = rowsOf(panel);
  if (!rows.length) return held.body.replaceChildren(element("div", { className: "empty" }, held.spec.empty));
  const head = ["Measure", "A", "B", "B − A", "95 % interval", "", "n of A", "n of B"].map((name, at) => element("th", { scope: "col", className: at ? "value" : "" }, name));
  const reach = Math.max(...rows.map((row) => relative(row)).filter(Number.isFinite), 1e-9);
  held.body.replaceChildren(element("div", { className: "scroll", tabIndex: 0 }, element("table", { className: "list" }, element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows.map((row) => {
      const one = !row.n_a || !row.n_b;
      const clear = !one && row.low != null && (row.low > 0 || row.high < 0);
      const line = element("tr", { className: Math.min(row.n_a, row.n_b) < FEW ? "few" : "" }, element("td", {}, row.measure),
        element("td", { className: "value" }, row.n_a ? formats.number(row.a) : "–"), element("td", { className: "value" }, row.n_b ? formats.number(row.b) : "–"),
        element("td", { className: "value" }, one ? "–" : signed(formats.number)(row.difference)),
        element("td", { className: "value" }, one || row.low == null ? "–" : `${minused(row.low)} to ${minused(row.high)}`),
        element("td", { className: "whisker" }, one || row.low == null ? "" : whisker(row, reach)),
        ...Object.keys(SIDES).map((side) => element("td", { className: "value" }, element("a", { href: exploredSide(side, {}) }, formats.count(row[`n_${side}`])))));
      if (clear) line.dataset.clear = row.difference > 0 ? "more" : "less";
      return line;
    })))));
}

// Measures have different units: differences are drawn relative to the mean of A, or of B if that is 0.
const base = (row) => Math.max(Math.abs(row.a), Math.abs(row.b)) || 1;
const relative = (row) => Math.min(2, Math.max(Math.abs(row.low ?? 0), Math.abs(row.high ?? 0)) / base(row));

function whisker(row, reach) {
  const at = (value) => 50 + 50 * Math.max(-1, Math.min(1, value / base(row) / reach));
  const box = element("div", { className: "range" });
  const bar = element("i");
  bar.style.left = at(row.low) + "%";
  bar.style.width = Math.max(1, at(row.high) - at(row.low)) + "%";
  const dot = element("b");
  dot.style.left = at(row.difference) + "%";
  box.append(bar, dot);
  return box;
}

function drawScore(panel) {
  const [score] = rowsOf(panel);
  const interval = score?.low == null ? "" : `95 % interval ${signed(formats.share)(score.low)} to ${signed(formats.share)(score.high)}`;
  byId("tiles").replaceChildren(
    tile("B wins", String(score.b_wins), `of ${score.tasks.toLocaleString("en-US")} tasks on both sides`),
    tile("A wins", String(score.a_wins), `of ${score.tasks.toLocaleString("en-US")} tasks on both sides`),
    tile("Ties", String(score.ties), "means within 0.01"),
    tile("Reward, B − A", score.tasks ? signed(formats.share)(score.mean) : "–", score.tasks ? `${interval || "one task"}; mean over tasks` : "no task on both sides"),
  );
}

// The controls: for each side a run, its first and last version, and slices of its own in place of those of both sides.
function drawSides(runs, choices) {
  const chosen = query();
  const rows = rowsOf(runs);
  const slices = rowsOf(choices);
  const form = byId("sides");
  const wanted = JSON.stringify([rows.map((row) => row.run), chosen.toString(), slices.map((row) => [row.kind, row.slice])]);
  const isUsed = form.contains(document.activeElement) && form.dataset.chosen === chosen.toString();
  if (isUsed || form.dataset.drawn === wanted) return;
  form.dataset.drawn = wanted;
  form.dataset.chosen = chosen.toString();
  const list = element("datalist", { id: "known-runs" }, ...rows.map((row) => new Option(`v${row.first} to v${row.last}`, row.run)));
  const sides = Object.entries(SIDES).map(([side, title]) => {
    const input = (name, label, properties) => {
      const field = element("input", { name: `${side}_${name}`, value: chosen.get(`${side}_${name}`) ?? "", autocomplete: "off", ...properties });
      if (name === "run") field.setAttribute("list", "known-runs");
      return element("label", {}, label + " ", field);
    };
    const own = Object.entries(SLICES).flatMap(([kind, name]) => {
      const now = chosen.get(`${side}_${kind}`) ?? "";
      const offered = offeredSlices(slices, kind, now, "as both sides");
      if (!offered) return [];
      const select = element("select", { name: `${side}_${kind}` }, ...offered.map(([each, label]) => new Option(label, each)));
      select.value = now;
      return [element("label", {}, name + " ", select)];
    });
    const isOpen = Object.keys(SLICES).some((kind) => chosen.get(`${side}_${kind}`));
    return element("fieldset", {}, element("legend", {}, "Side " + title), input("run", "Run", { type: "text", required: true }),
      input("from", "From version", { type: "number", min: 0 }), input("to", "to", { type: "number", min: 0 }),
      ...(own.length ? [element("details", { open: isOpen }, element("summary", {}, `Slices of ${title} alone`), element("div", { className: "own" }, ...own))] : []));
  });
  const kind = element("select", { name: "kind" }, new Option("training rollouts", "train"), new Option("evaluations", "evaluate"));
  kind.value = chosen.get("kind") || "train";
  const swap = element("button", { type: "button" }, "Swap sides");
  swap.addEventListener("click", () => choose(Object.fromEntries(["run", "from", "to", ...Object.keys(SLICES)].flatMap((name) => [[`a_${name}`, query().get(`b_${name}`)], [`b_${name}`, query().get(`a_${name}`)]]))));
  form.replaceChildren(...sides, element("label", {}, "Of ", kind), element("button", { type: "submit" }, "Compare"), swap, list);
}

// Without a choice: the first versions of the newest run, or of the run in the address, against its last.
function chooseDefaults(runs) {
  const chosen = query();
  if (chosen.get("a_run") || chosen.get("b_run")) return false;
  const rows = rowsOf(runs);
  const row = rows.find((each) => each.run === chosen.get("run")) ?? rows[0];
  if (!row) return false;
  const span = Math.min(4, Math.floor((row.last - row.first) / 2));
  choose({ run: null, a_run: row.run, a_from: row.first, a_to: row.first + span, b_run: row.run, b_from: row.last - span, b_to: row.last }, { replace: true });
  return true;
}

// The address of the list of the trajectories of a side, with its versions and slices, and `changes`.
function exploredSide(side, changes) {
  const now = query();
  const own = Object.entries({ run: now.get(`${side}_run`), from: now.get(`${side}_from`), to: now.get(`${side}_to`), purpose: now.get("kind") || "train",
    ...Object.fromEntries(Object.keys(SLICES).map((kind) => [kind, now.get(`${side}_${kind}`) || now.get(kind)])) });
  return "/explore?" + new URLSearchParams({ ...Object.fromEntries(own.filter(([, value]) => value)), ...changes });
}
const task = (side) => (row) => exploredSide(side, { task: row.task_id });

// A bin opens its trajectories on a side; that of A without one.
const inBin = (filters) => (bin, series) => { location.href = exploredSide(series === "B" ? "b" : "a", filters(bin)); };

const OVERRIDES = {
  rewards: { draw: drawCompared },
  lengths: { draw: drawCompared },
  tools: { draw: drawCompared },
  tasks: { search: "Search tasks", links: { a: task("a"), b: task("b") } },
  reward_distribution: { options: { colours: { A: "--c1", B: "--c0" }, open: inBin(ofRewards) } },
  length_distribution: { options: { colours: { A: "--c1", B: "--c0" }, open: inBin(ofTokens) } },
};

byId("sides").addEventListener("submit", (event) => {
  event.preventDefault();
  choose(Object.fromEntries(new FormData(event.target)));
});

specifications("/compare").then((specs) => {
  const cards = new Cards(byId("cards"), [...specs.values()].filter((spec) => !["figures", "data"].includes(spec.form)), OVERRIDES);
  cards.cuts = Object.keys(SLICES);
  livePage(({ panels }) => {
    if (chooseDefaults(panels.runs)) return;
    drawSides(panels.runs, panels.choices);
    drawSlices(byId("slices"), panels.choices, { split: false });
    drawScore(panels.score);
    const parameters = Object.fromEntries(query());
    cards.select(parameters, 0);
    cards.draw(panels);
  });
}).catch(unreachable);
