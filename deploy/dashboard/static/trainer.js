// The trainer's page: all metrics of a run's steps. Names, descriptions and thresholds come from the registry
// (/api/metrics).
"use strict";

const steps = (options) => ({ kind: "lines", xLabel: "Step", xFormat: String, format: formats.number, yFormat: formats.number, ...options });

const AGES = { unknown: "unknown", 0: "fresh", 1: "1 version", 2: "2", "3_4": "3 to 4", "5_8": "5 to 8", "9_up": "9 and more" };
const AGE_COLOURS = { unknown: "--quiet", 0: "--c0", 1: "--c2", 2: "--c3", "3_4": "--c1", "5_8": "--c4", "9_up": "--c7" };
const ofAges = (values) => Object.fromEntries(Object.entries(values).map(([age, value]) => ["tokens_age_" + age, value]));

// Sections of cards: heading, then [id, title, names of metrics (with * a family), description (null: that of the
// registry), options].
const SECTIONS = [
  ["Learning", [
    ["reward", "Reward", ["rollout_reward_mean", "reward_mean"], "Mean reward of all rollouts since the previous step, and of the trajectories that are trained. Groups without variance are only in the first.",
      steps({ wide: true, height: 260, colours: { rollout_reward_mean: "--c1", reward_mean: "--c0" } })],
    ["zero_variance_share", "Groups without variance", ["zero_variance_all_success", "zero_variance_all_fail", "zero_variance_all_equal"], "Share of all complete groups that have no reward variance: they were sampled, but are not trained.",
      steps({ range: () => [0, 1.02], labels: { zero_variance_all_success: "all succeed", zero_variance_all_fail: "all fail", zero_variance_all_equal: "all equal" },
        colours: { zero_variance_all_success: "--c2", zero_variance_all_fail: "--c7", zero_variance_all_equal: "--quiet" } })],
    ["loss", "Loss", ["loss"], null, steps()],
    ["entropy", "Entropy", ["entropy"], null, steps({ colours: { entropy: "--c2" } })],
    ["grad_norm", "Gradient norm", ["grad_norm"], null, steps({ colours: { grad_norm: "--c6" } })],
    ["learning_rate", "Learning rate", ["learning_rate"], null, steps({ colours: { learning_rate: "--c3" } })],
  ]],
  ["Distance from the sampling policies", [
    ["ratio", "Importance ratio", ["importance_ratio_max", "importance_ratio_mean"], "ρ = π / π_behaviour of a token: 1 on-policy.", steps({ colours: { importance_ratio_max: "--quiet" } })],
    ["ess", "Effective sample size", ["effective_sample_size"], null, steps({ range: (_, low) => [Math.min(0, low), 1.02] })],
    ["kl", "KL", ["kl_k1", "kl_k3", "kl_reference"], "From the sampling policies (k1 and k3), and from the reference policy if it is penalised.", steps()],
    ["mismatch", "Trainer against engine", ["mismatch_kl"], null, steps({ colours: { mismatch_kl: "--c7" }, dots: ["mismatch_kl"] })],
    ["clipped", "Clipped and truncated tokens", ["clip_fraction_low", "clip_fraction_high", "correction_truncated"], "Share of the kept tokens that the loss clips or its correction truncates.", steps({ range: (_, low, high) => [0, Math.max(0.02, high * 1.08)] })],
    ["staleness", "Staleness", ["staleness_max", "staleness_p95", "staleness_p50"], "Versions between sampling and training, over tokens.", steps({ whole: true, yFormat: String })],
    ["ages", "Tokens by age", ["tokens_age_*"], "Trained tokens by age: how many versions ago they were sampled.", steps({ kind: "bars", wide: true, labels: ofAges(AGES), colours: ofAges(AGE_COLOURS), format: formats.count, yFormat: compact.format })],
  ]],
  ["Speed", [
    ["seconds", "Seconds of a step", ["seconds_wait", "seconds_resolve", "seconds_train", "seconds_save", "seconds_publish"], "Waiting for groups, resolving them, training; saving and publishing are those of the previous version.",
      steps({ kind: "bars", wide: true, height: 260, labels: { seconds_wait: "wait", seconds_resolve: "resolve", seconds_train: "train", seconds_save: "save", seconds_publish: "publish" },
        colours: { seconds_wait: "--c1", seconds_resolve: "--c3", seconds_train: "--c0", seconds_save: "--c2", seconds_publish: "--c6" } })],
    ["speed", "Tokens per second of training", ["tokens_per_second"], null, steps({ colours: { tokens_per_second: "--c0" }, format: formats.count, yFormat: compact.format })],
    ["tokens", "Tokens per step", ["tokens_read", "tokens_trained"], "All tokens of the batch, and the sampled tokens among them.", steps({ format: formats.count, yFormat: compact.format, colours: { tokens_read: "--quiet", tokens_trained: "--c0" } })],
  ]],
];

const charts = {};
let registry = {};

function layOut() {
  for (const [heading, cards] of SECTIONS) {
    const grid = element("div", { className: "cards" });
    for (const [id, title, names, about, options] of cards) {
      const sentence = about ?? registry[names[0]]?.about ?? "";
      const limit = names.map((name) => registry[name]?.threshold && `${name.replaceAll("_", " ")} ${registry[name].threshold}`).filter(Boolean);
      const section = element("section", { className: options.wide ? "card wide" : "card", id }, element("h2", {}, title),
        element("p", { className: "about" }, sentence, limit.length ? ` Warning: ${limit.join(", ")}.` : ""));
      grid.append(section);
      const bounds = names.flatMap((name) => [registry[name]?.warn_above, registry[name]?.warn_below]).filter((bound) => bound != null);
      charts[id] = new Chart(section, { ...options, bounds });
    }
    byId("charts").append(element("h2", { className: "heading" }, heading), grid);
  }
}

const columnOf = (panel, name) => panel["metrics." + name];
// The metrics of a card that the steps have. Of a family only those that are not always 0, the oldest first, so that it
// is drawn on top.
function namesIn(panel, names) {
  const family = (name) => Object.keys(AGES).reverse().map((age) => name.slice(0, -1) + age).filter((each) => columnOf(panel, each)?.some(Boolean));
  return names.flatMap((name) => (name.endsWith("*") ? family(name) : columnOf(panel, name) ? [name] : []));
}

const newest = (column) => (column?.length ? column[column.length - 1] : null);
const beyond = (name, value) => value != null && ((registry[name]?.warn_above != null && value > registry[name].warn_above)
  || (registry[name]?.warn_below != null && value < registry[name].warn_below));

function drawCharts(panel) {
  for (const [, cards] of SECTIONS) {
    for (const [id, , names] of cards) {
      const present = namesIn(panel, names);
      if (present.length) charts[id].draw(panel.step, present, present.map((name) => columnOf(panel, name)));
      else charts[id].empty(panel.step?.length ? "The steps of this run do not have this metric." : "No steps yet: the trainer makes a step when it has received enough groups with a gradient. `headrace train --help`");
    }
  }
}

function ago(ms) {
  const seconds = Math.max(0, Math.round((Date.now() - ms) / 1000));
  if (seconds < 120) return `${seconds} s ago`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}

// The phase in which the last ten steps spent most of their time.
function verdict(panel) {
  const spent = ["wait", "resolve", "train", "save", "publish"].map((what) =>
    [what, (columnOf(panel, "seconds_" + what) ?? []).slice(-10).reduce((sum, value) => sum + (value ?? 0), 0)]);
  const all = spent.reduce((sum, [, value]) => sum + value, 0);
  if (!all) return ["–", "no steps yet"];
  const [what, most] = spent.reduce((a, b) => (b[1] > a[1] ? b : a));
  const words = { wait: "starved", train: "busy", save: "saving", publish: "publishing", resolve: "resolving" };
  return [most / all < 0.5 ? "balanced" : words[what], `${Math.round((100 * most) / all)} % in ${what}, last ten steps`];
}

function drawTiles(panels) {
  const panel = panels.steps;
  const [now] = rowsOf(panels.now);
  const value = (name) => newest(columnOf(panel, name));
  const first = columnOf(panel, "reward_mean")?.[0];
  const change = first == null ? null : value("reward_mean") - first;
  const measured = (title, name, note, format = formats.number) => {
    const box = tile(title, format(value(name)), note);
    if (beyond(name, value(name))) box.dataset.warning = "yes";
    return box;
  };
  byId("tiles").replaceChildren(
    tile("Policy version", now.step ? "v" + now.published : "–", now.step ? `step ${now.step}, ${ago(now.last_ms)}` + (now.skipped ? ` · ${now.skipped} skipped` : "") : "no steps yet"),
    measured("Reward", "reward_mean", change == null ? "none yet" : `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(3)} since step ${panel.step[0]}`, formats.share),
    measured("Mismatch KL", "mismatch_kl", value("mismatch_kl") == null ? "no fresh tokens in the newest step" : "trainer against engine"),
    measured("Effective sample size", "effective_sample_size", `staleness p95 ${formats.number(value("staleness_p95"))}`),
    measured("Tokens per second", "tokens_per_second", `${formats.count(value("tokens_trained"))} trained in the newest step`, formats.count),
    trainerTile(verdict(panel), now),
  );
}

// Compares the groups in flight with the budget. Tables are filled one after another, so the groups of a step may still
// seem to be in flight: only an excess of more than a step's groups is a warning.
function trainerTile([word, share], now) {
  const granted = now.groups_granted == null ? "" : `, ${now.groups_in_flight} of ${now.groups_granted} in flight`;
  // After the last step the budget is 0: groups that are still in flight then are left over, which is no error.
  if (now.groups_granted === 0) return tile("Trainer", "finished", `the last step is trained · ${now.groups_waiting} groups left over`);
  const over = now.groups_granted != null && now.groups_in_flight > now.groups_granted + now.groups_per_step;
  const box = tile("Trainer", word, `${share} · ${now.groups_waiting} groups waiting${granted}${over ? ": do the samplers’ shares add up to more than 1?" : ""}`);
  if (over) box.dataset.warning = "yes";
  return box;
}

function drawRejected(panel) {
  const rows = rowsOf(panel).map((row) => ({ name: row.reason.replaceAll("_", " "), count: row.trajectories, colour: "--quiet" }));
  fill("rejected", rows.length ? barTable(rows) : element("div", { className: "empty" }, "None."));
}

// All metrics of the newest step; those that are not in the registry come last.
function drawNewest(panel) {
  const known = Object.keys(registry);
  const at = (name) => (known.includes(name) ? known.indexOf(name) : known.findIndex((each) => each.endsWith("*") && name.startsWith(each.slice(0, -1))));
  const names = Object.keys(panel).filter((name) => name.startsWith("metrics.")).map((name) => name.slice(8))
    .filter((name) => newest(columnOf(panel, name)) != null && (known.includes(name) || newest(columnOf(panel, name)) !== 0))
    .sort((a, b) => (at(a) < 0) - (at(b) < 0) || at(a) - at(b) || a.localeCompare(b));
  if (!names.length) return fill("newest", element("div", { className: "empty" }, "No steps yet."));
  fill("newest", element("div", { className: "scroll" }, element("table", { className: "list" }, element("tbody", {}, ...names.map((name) => {
    const metric = registry[known[at(name)]] ?? { unit: "", about: "", threshold: "" };
    const row = element("tr", {}, element("td", {}, element("code", {}, name)),
      element("td", { className: "value" }, formats.number(newest(columnOf(panel, name)))),
      element("td", { className: "when" }, metric.unit.replace(/[{}]/g, "").replace(/^1$/, "")),
      element("td", {}, metric.about, metric.threshold ? element("span", { className: "limit" }, ` Warning ${metric.threshold}.`) : ""));
    if (beyond(name, newest(columnOf(panel, name)))) row.dataset.warning = "yes";
    return row;
  })))));
}

fetch("/api/metrics").then((answer) => answer.json()).then((metrics) => {
  registry = metrics;
  layOut();
  livePage(({ panels }) => {
    drawTiles(panels);
    drawCharts(panels.steps);
    drawRejected(panels.rejected);
    drawAlerts(panels.alerts);
    drawNewest(panels.steps);
  });
}).catch(() => {
  byId("problem").hidden = false;
  byId("problem").textContent = "The dashboard does not answer: reload the page.";
});
