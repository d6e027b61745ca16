// The overview page: draws every panel from a snapshot.
"use strict";

const SERIES = { train: "training rollouts", frozen: "frozen sub-agents", greedy: "held out, greedy", sampled: "held out, sampled", evaluate: "evaluation" };
// In the order from the top of a bar to its bottom.
const FATES = {
  zero_variance_all_equal: "all equal",
  zero_variance_all_fail: "all failed",
  zero_variance_all_success: "all succeeded",
  kept: "kept",
};
const GROUP_COLOURS = {
  kept: "--c0", zero_variance_all_success: "--c2", zero_variance_all_fail: "--c1", zero_variance_all_equal: "--c3",
};
const FATE_COLOURS = { trained: "--c0", rejected: "--quiet", pending: "--c3" };

// A point of a chart by version opens its trajectories: those of the slice of its series, if the chart is split. `split`
// is the kind of slice of a chart that is always split; `sliceOf` finds the slice in the name of a series.
const atVersion = ({ split = null, sliceOf = (series) => series } = {}) => (version, series) => {
  const by = split ?? query().get("by");
  explore({ from: version, to: version, purpose: "train", ...(by && series ? { [by]: sliceOf(series) } : {}) });
};
// The same for charts whose series are training rollouts and evaluations by label; all of them without a series.
const ofSide = (version, series) => explore({ from: version, to: version, ...(series ? { purpose: isHeldOut(series) ? "evaluate" : "train" } : {}) });
const isHeldOut = (series) => !["train", "frozen"].includes(series);
const SIDES = { labels: SERIES, dots: ["greedy", "sampled", "evaluate"],
  colours: { train: "--c0", greedy: "--c1", sampled: "--c2", evaluate: "--c4", frozen: "--c6" } };

// A component's means on both sides, at the newest version that has a held-out one.
function besideHeldOut(name, rows) {
  const text = (row) => `${SERIES[row.series] ?? row.series} ${formats.share(row.share)} (n ${row.trajectories.toLocaleString("en-US")})`;
  const held = rows.filter((row) => isHeldOut(row.series));
  if (!held.length) return "No held-out side: no evaluation was scored by it.";
  const newest = Math.max(...held.map((row) => row.version));
  const there = rows.filter((row) => row.version === newest).sort((a, b) => isHeldOut(a.series) - isHeldOut(b.series) || (a.series < b.series ? -1 : 1));
  const lacks = there.every((row) => isHeldOut(row.series)) ? (rows.length > held.length ? "; no training rollouts" : "; never in training") : "";
  return `v${newest}: ${there.map(text).join(", ")}${lacks}`;
}
// A bin of a histogram opens its trajectories, of the versions of its series; of all versions without a series.
const inBin = (panel, filters) => (bin, series) => {
  const of = rowsOf(page.panels[panel]).find((row) => row.series === series);
  const by = query().get("by");
  explore({ purpose: "train", ...filters(bin), ...(of ? { from: of.first, to: of.last, ...(by ? { [by]: series } : {}) } : {}) });
};
// Groups that were not kept are rejected for a reason.
const ofFate = (fate) => (fate && fate !== "kept" ? { reason: fate } : {});
const beforeComponent = (series) => series.slice(0, series.lastIndexOf(": "));

const OVERRIDES = {
  reward: { order: ["frozen", "train", "greedy", "sampled"], options: { ...SIDES,
    open: (version, series) => (query().get("by") ? atVersion() : ofSide)(version, series),
    range: (_, low, high) => [Math.min(0, low), Math.max(1, high)], yFormat: (y) => y.toFixed(1) } },
  held_out: { order: ["train", "greedy", "sampled"], caption: besideHeldOut, options: { ...SIDES, open: ofSide } },
  components: { options: { open: atVersion({ sliceOf: beforeComponent }) } },
  sources: { options: { open: atVersion({ split: "source", sliceOf: beforeComponent }) } },
  lengths: { options: { open: atVersion() } },
  reward_distribution: { options: { open: inBin("reward_distribution", ofRewards) } },
  length_distribution: { options: { open: inBin("length_distribution", ofTokens) } },
  tools: { options: { open: (version, tool) => atVersion({ split: query().get("by") ?? "tool" })(version, tool) } },
  falls: { links: { since: ({ kind, slice, since }) => explored({ purpose: "train",
    from: since, to: since + 4, sort: "reward", order: "rising", ...(kind === "all" ? {} : { [kind]: slice }) }) } },
  groups: { order: Object.keys(FATES), options: { labels: FATES, colours: GROUP_COLOURS, open: (version, fate) => explore({ from: version, to: version, ...ofFate(fate) }) }, draw: drawGroups },
  versions: { options: { colours: { published: "--quiet" }, widths: { published: 6 }, open: (_, __, version) => explore({ from: version, to: version }) }, draw: drawVersions },
  staleness: { options: { open: (step) => explore({ step }) } },
  fates: { draw: drawFates },
  alerts: { draw: drawAlerts },
  runs: { search: "Search runs", links: { run: (row) => "?" + new URLSearchParams({ run: row.run }) }, table: {
    note: (shown, all) => {
      const known = page.panels.runs.all_runs?.[0] ?? all;
      return `${shown.toLocaleString("en-US")} of ${known.toLocaleString("en-US")} runs` + (known > all ? `; the list has the ${all.toLocaleString("en-US")} most recently active` : "");
    } } },
};

let cards = null;
let page = null;

function drawVersions(panel, held) {
  const aligned = alignedOf(held.spec, panel);
  if (!aligned.xs.length) return held.chart.empty(held.spec.empty);
  // Series are sorted by name, so "published" is first: it is the wide line under the others. At a time at which only
  // one series has a point, the others keep their last value.
  for (const array of aligned.arrays) array.forEach((value, at) => { array[at] = value ?? array[at - 1] ?? null; });
  held.chart.draw(aligned.xs, aligned.names, aligned.arrays);
}

function drawFates(panel) {
  const rows = rowsOf(panel).map((row) => ({
    name: row.reason ? `${row.fate}: ${row.reason.replaceAll("_", " ")}` : row.fate,
    count: row.trajectories,
    colour: FATE_COLOURS[row.fate],
    address: explored(row.reason ? { reason: row.reason } : { fate: row.fate === "pending" ? "undecided" : row.fate }),
  }));
  fill("fates", rows.length ? barTable(rows) : element("div", { className: "empty" }, "No trajectories yet."));
}

function drawGroups(panel, held) {
  const rows = rowsOf(panel);
  if (rows.length && rows.every((row) => row.version == null)) {
    // Groups of recorded runs have no policy version: draw them as bars without an axis.
    held.chart.show(barTable(rows.map((row) => ({
      name: FATES[row.fate] ?? row.fate.replaceAll("_", " "), count: row.groups, colour: GROUP_COLOURS[row.fate] ?? "--quiet",
      address: explored(ofFate(row.fate)),
    }))));
    return;
  }
  cards.drawChart(held, panel);
}

// First and last reward of a series, by version.
function ends(panel, series) {
  const rows = rowsOf(panel).filter((row) => row.series === series).sort((a, b) => a.version - b.version);
  return rows.length ? [rows[0], rows[rows.length - 1]] : null;
}

// A chart that is split has a line for each slice of the training rollouts, and none of the evaluations.
function rewardTile(title, found, run, split) {
  if (query().get("by")) return tile(title, "–", split);
  if (!found && run) return tile(title, formats.share(run.reward), `mean of ${run.trajectories.toLocaleString("en-US")}, no policy version`);
  if (!found) return tile(title, "–", "none yet");
  const [first, last] = found;
  const change = last.reward - first.reward;
  const since = first === last ? `at v${last.version}` : `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(3)} since v${first.version}`;
  return tile(title, last.reward.toFixed(3), `${since}, n ${last.trajectories.toLocaleString("en-US")}`);
}

function drawTiles(panels, chosen) {
  const [totals] = rowsOf(panels.totals);
  const [pace] = rowsOf(panels.pace);
  const groups = rowsOf(panels.groups);
  const count = (keep) => groups.filter(keep).reduce((sum, row) => sum + row.groups, 0);
  const [kept, all] = [count((row) => row.fate === "kept"), count(() => true)];
  const served = rowsOf(panels.versions).reduce((most, row) => (row.series === "published" ? most : Math.max(most, row.version)), -1);
  const pending = rowsOf(panels.fates).filter((row) => row.fate === "pending").reduce((sum, row) => sum + row.trajectories, 0);
  const number = (value) => value.toLocaleString("en-US");
  byId("tiles").replaceChildren(
    rewardTile("Reward, training", ends(panels.reward, "train"), rowsOf(panels.runs).find((row) => row.run === chosen), "split by slices below"),
    rewardTile("Reward, held out", ends(panels.reward, "greedy") ?? ends(panels.reward, "sampled") ?? ends(panels.reward, "evaluate"), null, "only without a split"),
    tile("Policy version", totals.versions ? "v" + totals.published : "–", served < 0 ? "none served yet" : `v${served} served, step ${totals.step}`),
    tile("Trajectories", number(totals.started), pace ? `${number(pace.events_a_minute)} events per minute` : ""),
    tile("Trained", number(totals.trained), `${number(totals.rejected)} rejected, ${number(pending)} pending`),
    tile("Groups kept", all ? Math.round((100 * kept) / all) + " %" : "–", all ? `${number(kept)} of ${number(all)}` : "none yet"),
  );
  if (totals.dead_letters) {
    byId("tiles").lastChild.lastChild.textContent += ` · ${number(totals.dead_letters)} dead letters`;
  }
}

specifications("").then((specs) => {
  const [listing, ...others] = [...specs.values()].filter((spec) => !["figures", "data"].includes(spec.form));
  cards = new Cards(byId("cards"), [...others, listing], OVERRIDES);
  cards.cuts = Object.keys(SLICES);
  livePage((snapshot) => {
    page = snapshot;
    document.body.dataset.run = snapshot.run;
    drawSlices(byId("slices"), snapshot.panels.choices);
    showGuide(!rowsOf(snapshot.panels.runs).length && !rowsOf(snapshot.panels.totals)[0]?.started);
    drawTiles(snapshot.panels, snapshot.run);
    cards.select(parametersOf(snapshot.run), Number(query().get("smooth") ?? 0));
    cards.draw(snapshot.panels);
  }, { every: "all runs" });
}).catch(unreachable);
