// The trainer's page: all metrics of a run's steps. Names, descriptions and thresholds come from the registry
// (/api/metrics).
"use strict";

const AGE_COLOURS = { unknown: "--quiet", 0: "--c0", 1: "--c2", 2: "--c3", "3_4": "--c1", "5_8": "--c4", "9_up": "--c7" };
const from0to1 = { range: (_, low) => [Math.min(0, low), 1.02] };
const coloured = (colours) => ({ colours: Object.fromEntries(Object.entries(colours).map(([name, colour]) => ["metrics." + name, colour])) });

// What the specifications leave to the page, by panel.
const OPTIONS = {
  reward: coloured({ rollout_reward_mean: "--c1", reward_mean: "--c0" }),
  zero_variance_share: { ...from0to1, ...coloured({ zero_variance_all_success: "--c2", zero_variance_all_fail: "--c7", zero_variance_all_equal: "--quiet" }) },
  entropy: coloured({ entropy: "--c2" }),
  grad_norm: coloured({ grad_norm: "--c6" }),
  learning_rate: coloured({ learning_rate: "--c3" }),
  ratio: coloured({ importance_ratio_max: "--quiet" }),
  ess: from0to1,
  mismatch: { ...coloured({ mismatch_kl: "--c7" }), dots: ["metrics.mismatch_kl"] },
  clipped: { range: (_, low, high) => [0, Math.max(0.02, high * 1.08)] },
  ages: coloured(Object.fromEntries(Object.entries(AGE_COLOURS).map(([age, colour]) => ["tokens_age_" + age, colour]))),
  seconds: coloured({ seconds_wait: "--c1", seconds_resolve: "--c3", seconds_train: "--c0", seconds_save: "--c2", seconds_publish: "--c6" }),
  tokens: coloured({ tokens_read: "--quiet", tokens_trained: "--c0" }),
};

let registry = {};
let cards = null;

const columnOf = (panel, name) => panel["metrics." + name];
const newest = (column) => (column?.length ? column[column.length - 1] : null);
const beyond = (name, value) => value != null && ((registry[name]?.warn_above != null && value > registry[name].warn_above)
  || (registry[name]?.warn_below != null && value < registry[name].warn_below));

// The override of a chart of metrics: its thresholds, and what is drawn of the steps.
function metricChart(spec) {
  const names = spec.values.map(({ column }) => column.slice("metrics.".length));
  const limits = names.map((name) => registry[name]?.threshold && `${name.replaceAll("_", " ")} ${registry[name].threshold}`).filter(Boolean);
  const bounds = names.flatMap((name) => [registry[name]?.warn_above, registry[name]?.warn_below]).filter((bound) => bound != null);
  return {
    about: spec.about + (limits.length ? ` Warning: ${limits.join(", ")}.` : ""),
    options: { ...OPTIONS[spec.name], bounds, open: (step) => explore({ step }) },
    draw: (columns, held) => {
      if (!columns.step?.length) return held.chart.empty(spec.empty);
      // Ages that no token has are left out; so are metrics that the steps lack.
      const used = spec.form === "bars" ? Object.fromEntries(Object.entries(columns).filter(([name, values]) => name === "step" || values.some(Boolean))) : columns;
      if (!spec.values.some(({ column }) => column in used)) return held.chart.empty("The steps of this run do not have this metric.");
      cards.drawChart(held, used);
    },
  };
}

// Rewards as a share of the largest reward, if the run has one; else in the unit of its reward spec.
function onOneScale(columns, maximum) {
  const divided = { ...columns };
  for (const name of ["metrics.reward_mean", "metrics.rollout_reward_mean"]) {
    if (maximum > 0 && columns[name]) divided[name] = columns[name].map((value) => (value == null ? null : value / maximum));
  }
  return divided;
}
const scaleName = (maximum) => (maximum > 0 ? `share of the largest reward, ${formats.number(maximum)}` : "in the reward spec’s own unit");

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

function drawTiles(panels, panel) {
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
    measured("Reward", "reward_mean", change == null ? "none yet" : `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(3)} since step ${panel.step[0]}, ${scaleName(now.reward_maximum)}`, formats.share),
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
  const rows = rowsOf(panel).map((row) => ({ name: row.reason.replaceAll("_", " "), count: row.trajectories, colour: "--quiet", address: explored({ reason: row.reason }) }));
  fill("rejected", rows.length ? barTable(rows) : element("div", { className: "empty" }, "None."));
}

// All metrics of the newest step; those that are not in the registry come last.
function drawNewest(panel) {
  const known = Object.keys(registry);
  const at = (name) => (known.includes(name) ? known.indexOf(name) : known.findIndex((each) => each.endsWith("*") && name.startsWith(each.slice(0, -1))));
  const names = Object.keys(panel).filter((name) => name.startsWith("metrics.")).map((name) => name.slice(8))
    .filter((name) => newest(columnOf(panel, name)) != null && (known.includes(name) || newest(columnOf(panel, name)) !== 0))
    .sort((a, b) => (at(a) < 0) - (at(b) < 0) || at(a) - at(b) || a.localeCompare(b));
  if (!names.length) return fill("steps", element("div", { className: "empty" }, "No steps yet."));
  fill("steps", element("div", { className: "scroll" }, element("table", { className: "list" }, element("tbody", {}, ...names.map((name) => {
    const metric = registry[known[at(name)]] ?? { unit: "", about: "", threshold: "" };
    const row = element("tr", {}, element("td", {}, element("code", {}, name)),
      element("td", { className: "value" }, formats.number(newest(columnOf(panel, name)))),
      element("td", { className: "when" }, metric.unit.replace(/[{}]/g, "").replace(/^1$/, "")),
      element("td", {}, metric.about, metric.threshold ? element("span", { className: "limit" }, ` Warning ${metric.threshold}.`) : ""));
    if (beyond(name, newest(columnOf(panel, name)))) row.dataset.warning = "yes";
    return row;
  })))));
}

Promise.all([fetch("/api/metrics").then((answer) => answer.json()), specifications("/trainer")]).then(([metrics, specs]) => {
  registry = metrics;
  const drawn = [...specs.values()].filter((spec) => !["figures", "data"].includes(spec.form));
  const overrides = Object.fromEntries(drawn.filter((spec) => spec.source).map((spec) => [spec.name, metricChart(spec)]));
  Object.assign(overrides, { rejected: { draw: drawRejected }, alerts: { draw: drawAlerts }, steps: { draw: drawNewest } });
  cards = new Cards(byId("charts"), [...drawn.filter((spec) => spec.section), ...drawn.filter((spec) => !spec.section && !spec.wide), ...drawn.filter((spec) => !spec.section && spec.wide)], overrides);
  livePage(({ panels, run }) => {
    document.body.dataset.run = run;
    const [now] = rowsOf(panels.now);
    const scaled = onOneScale(panels.steps, now.reward_maximum);
    drawTiles(panels, scaled);
    cards.select(parametersOf(run), 0);
    cards.draw(panels);
    const reward = cards.cards.get("reward");
    reward.card.querySelector(".about").textContent = reward.spec.about.replace("in the reward spec's own unit", scaleName(now.reward_maximum));
    if (scaled.step?.length) cards.drawChart(reward, scaled);
  });
}).catch(unreachable);
