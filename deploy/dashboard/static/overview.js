// The overview page: draws every panel from a snapshot.
"use strict";

const SERIES = { train: "training rollouts", greedy: "held out, greedy", sampled: "held out, sampled", evaluate: "evaluation" };
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

const charts = {
  reward: card("reward", { kind: "lines", format: formats.share, height: 300, labels: SERIES, dots: ["greedy", "sampled", "evaluate"],
    colours: { train: "--c0", greedy: "--c1", sampled: "--c2", evaluate: "--c4" },
    range: (_, low, high) => [Math.min(0, low), Math.max(1, high)], yFormat: (y) => y.toFixed(1) }),
  components: card("components", { kind: "lines", format: formats.share, yFormat: (y) => y.toFixed(2) }),
  sources: card("sources", { kind: "lines", format: formats.share, yFormat: (y) => y.toFixed(2) }),
  groups: card("groups", { kind: "bars", whole: true, labels: FATES, colours: GROUP_COLOURS }),
  versions: card("versions", { kind: "steps", time: true, whole: true, format: formats.version, yFormat: formats.version,
    colours: { published: "--quiet" }, widths: { published: 6 } }),
  staleness: card("staleness", { kind: "lines", whole: true, xLabel: "Step", xFormat: String }),
  lag: card("lag", { kind: "lines", whole: true, time: true }),
};

const EMPTY = {
  reward: "No rewards with a policy version yet. `headrace demo` starts a run; recorded runs (`headrace import FILE`) have no policy version and are counted below.",
  components: "No scored training rollouts yet.",
  sources: "No task of this run names its source (`source` in the task's data).",
  groups: "No groups with a policy version yet: a group is complete when all attempts at its task have ended.",
  versions: "No weights yet: the trainer publishes version 0 when it starts (`headrace up`).",
  staleness: "No steps yet: the trainer makes a step when it has received enough groups with a gradient.",
  lag: "No lag was measured in the last ten minutes: the sink measures it while it runs (`headrace status`).",
};

function drawChart(name, { xs, names, arrays }) {
  if (xs.length) charts[name].draw(xs, names, arrays);
  else charts[name].empty(EMPTY[name]);
}

function drawVersions(panels) {
  const rows = rowsOf(panels.published).map((row) => ({ ...row, series: "published" }));
  for (const row of rowsOf(panels.applied)) rows.push({ ...row, series: "served by " + row.engine });
  for (const row of rows) row.seconds = row.ms / 1000;
  // Series are sorted by name, so "published" is first: it is the wide line under the others.
  const table = pivot(rows, "seconds", "series", "version");
  // At a time at which only one series has a point, the others keep their last value.
  for (const array of table.arrays) array.forEach((value, at) => { array[at] = value ?? array[at - 1] ?? null; });
  drawChart("versions", table);
}

function drawStaleness(panel) {
  const rows = rowsOf(panel).sort((a, b) => a.step - b.step);
  drawChart("staleness", { xs: rows.map((row) => row.step), names: ["largest", "median"],
    arrays: [rows.map((row) => row.largest), rows.map((row) => row.median)] });
}

function drawLag(panel) {
  const rows = rowsOf(panel).map((row) => ({ ...row, seconds: row.ms / 1000 }));
  drawChart("lag", pivot(rows, "seconds", "consumer_group", "records"));
}

const FATE_COLOURS = { trained: "--c0", rejected: "--quiet", pending: "--c3" };

function drawFates(panel) {
  const rows = rowsOf(panel).map((row) => ({
    name: row.reason ? `${row.fate}: ${row.reason.replaceAll("_", " ")}` : row.fate,
    count: row.trajectories,
    colour: FATE_COLOURS[row.fate],
  }));
  fill("fates", rows.length ? barTable(rows) : element("div", { className: "empty" }, "No trajectories yet."));
}

function drawGroups(panel) {
  const rows = rowsOf(panel);
  const versioned = rows.filter((row) => row.version != null);
  if (rows.length && !versioned.length) {
    // Groups of recorded runs have no policy version: draw them as bars without an axis.
    charts.groups.show(barTable(rows.map((row) => ({
      name: FATES[row.fate] ?? row.fate.replaceAll("_", " "), count: row.groups, colour: GROUP_COLOURS[row.fate] ?? "--quiet",
    }))));
    return;
  }
  drawChart("groups", pivot(versioned, "version", "fate", "groups", Object.keys(FATES)));
}

function drawRunTable(panel) {
  const rows = rowsOf(panel);
  if (!rows.length) return fill("runs", element("div", { className: "empty" }, "No scored trajectories yet."));
  const head = ["Run", "Scored", "Mean reward", "Last trajectory"].map((name) => element("th", {}, name));
  fill("runs", element("table", { className: "list" }, element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows.map((row) => element("tr", {},
      element("td", {}, row.run || "(unknown)"), element("td", {}, row.trajectories.toLocaleString("en-US")),
      element("td", {}, formats.share(row.reward)),
      element("td", { className: "when" }, new Date(row.last_ms).toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "short" })))))));
}

// First and last reward of a series, by version.
function ends(panel, series) {
  const rows = rowsOf(panel).filter((row) => row.series === series).sort((a, b) => a.version - b.version);
  return rows.length ? [rows[0], rows[rows.length - 1]] : null;
}

function rewardTile(title, found, run) {
  if (!found && run) return tile(title, formats.share(run.reward), `mean of ${run.trajectories.toLocaleString("en-US")}, no policy version`);
  if (!found) return tile(title, "–", "none yet");
  const [first, last] = found;
  const change = last.reward - first.reward;
  return tile(title, last.reward.toFixed(3), first === last ? `at v${last.version}` : `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(3)} since v${first.version}`);
}

function drawTiles(panels, chosen) {
  const [totals] = rowsOf(panels.totals);
  const groups = rowsOf(panels.groups);
  const count = (keep) => groups.filter(keep).reduce((sum, row) => sum + row.groups, 0);
  const [kept, all] = [count((row) => row.fate === "kept"), count(() => true)];
  const served = rowsOf(panels.applied).reduce((most, row) => Math.max(most, row.version), -1);
  const pending = rowsOf(panels.fates).filter((row) => row.fate === "pending").reduce((sum, row) => sum + row.trajectories, 0);
  const number = (value) => value.toLocaleString("en-US");
  byId("tiles").replaceChildren(
    rewardTile("Reward, training", ends(panels.reward, "train"), rowsOf(panels.runs).find((row) => row.run === chosen)),
    rewardTile("Reward, held out", ends(panels.reward, "greedy") ?? ends(panels.reward, "sampled") ?? ends(panels.reward, "evaluate")),
    tile("Policy version", totals.versions ? "v" + totals.published : "–", served < 0 ? "none served yet" : `v${served} served, step ${totals.step}`),
    tile("Trajectories", number(totals.started), `${number(totals.events_a_minute)} events per minute`),
    tile("Trained", number(totals.trained), `${number(totals.rejected)} rejected, ${number(pending)} pending`),
    tile("Groups kept", all ? Math.round((100 * kept) / all) + " %" : "–", all ? `${number(kept)} of ${number(all)}` : "none yet"),
  );
  if (totals.dead_letters) {
    byId("tiles").lastChild.lastChild.textContent += ` · ${number(totals.dead_letters)} dead letters`;
  }
}

livePage((snapshot) => {
  const panels = snapshot.panels;
  drawTiles(panels, snapshot.run);
  drawChart("reward", pivot(rowsOf(panels.reward), "version", "series", "reward", ["train", "greedy", "sampled"]));
  drawChart("components", pivot(rowsOf(panels.components), "version", "component", "share"));
  drawChart("sources", pivot(rowsOf(panels.sources), "version", "series", "value"));
  drawGroups(panels.groups);
  drawVersions(panels);
  drawStaleness(panels.staleness);
  drawLag(panels.lag);
  drawFates(panels.fates);
  drawAlerts(panels.alerts);
  drawRunTable(panels.runs);
}, { every: "all runs" });
