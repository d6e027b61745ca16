// The controls above charts: slices, by which they are cut and split, and smoothing. All of them are in the address.
"use strict";

const SLICES = { agent: "Agent", source: "Task source", tool: "Tool", tenant: "Tenant", harness: "Harness version", channel: "Channel", length: "Sampled tokens" };
const SPANS = [["", "none"], ["5", "5 versions"], ["15", "15 versions"]];

// Draws the controls in `box`; `choices` is the panel with the slices of the run.
function drawSlices(box, choices, { split = true } = {}) {
  const chosen = query();
  const rows = rowsOf(choices);
  const wanted = JSON.stringify(rows);
  // A list that is open stays open while the counts of its slices grow.
  const isOpen = box.contains(document.activeElement) && box.dataset.chosen === chosen.toString();
  if (isOpen || (box.dataset.drawn === wanted && box.dataset.chosen === chosen.toString())) return;
  box.dataset.drawn = wanted;
  box.dataset.chosen = chosen.toString();
  const controls = Object.entries(SLICES).flatMap(([kind, title]) => {
    const now = chosen.get(kind) ?? "";
    const offered = offeredSlices(rows, kind, now, "all");
    return offered ? [selector(title, kind, offered, now)] : [];
  });
  if (split) {
    const kinds = Object.entries(SLICES).filter(([kind]) => rows.filter((row) => row.kind === kind).length > 1 || chosen.get("by") === kind);
    if (kinds.length) controls.unshift(selector("Split by", "by", [["", "nothing"], ...kinds.map(([kind, title]) => [kind, title.toLowerCase()])], chosen.get("by") ?? ""));
    controls.push(selector("Smoothing", "smooth", SPANS, chosen.get("smooth") ?? ""));
  }
  const cut = Object.keys(SLICES).some((kind) => chosen.get(kind)) || chosen.get("by") || chosen.get("smooth");
  if (cut) {
    const reset = element("button", { type: "button" }, "Reset");
    reset.addEventListener("click", () => choose(Object.fromEntries([...Object.keys(SLICES), "by", "smooth"].map((name) => [name, null]))));
    controls.push(reset);
  }
  const focused = document.activeElement?.dataset?.parameter;
  box.replaceChildren(...controls);
  box.hidden = !controls.length;
  if (focused) box.querySelector(`[data-parameter="${focused}"]`)?.focus();
}

// The choices of a list of the slices of `kind`, the first of which is `every`; null if there is nothing to choose.
function offeredSlices(rows, kind, now, every) {
  const found = rows.filter((row) => row.kind === kind);
  // A kind with one slice cuts nothing.
  if (found.length < 2 && !now) return null;
  if (kind === "length") found.sort((a, b) => bound(a.slice) - bound(b.slice));
  if (now && !found.some((row) => row.slice === now)) found.push({ slice: now, trajectories: 0 });
  return [["", every], ...found.map((row) => [row.slice, `${row.slice} (${compact.format(row.trajectories)})`])];
}

const bound = (label) => Number(/[\d,]+/.exec(label)?.[0].replaceAll(",", "") ?? 0) - label.startsWith("under");

function selector(title, name, options, value) {
  const select = element("select", {}, ...options.map(([each, label]) => new Option(label, each)));
  select.value = value;
  select.dataset.parameter = name;
  select.addEventListener("change", () => choose({ [name]: select.value }));
  return element("label", {}, title + " ", select);
}

// The parameters of the address that panels know, with the run that is shown.
function parametersOf(run) {
  const parameters = Object.fromEntries(query());
  delete parameters.smooth;
  return { ...parameters, run };
}

// The address of the list of trajectories with the slices of this page and `changes`; it has no other parameters.
function explored(changes) {
  const now = parametersOf(query().get("run") ?? document.body.dataset.run ?? "");
  const kept = Object.fromEntries(Object.keys(SLICES).filter((name) => now[name]).map((name) => [name, now[name]]));
  return "/explore?" + new URLSearchParams({ run: now.run, ...kept, ...changes }); // an empty run means all of them
}

// Filters of that list for a bin of a histogram, by its lower end: of rewards, 0.05 wide, and of sampled tokens.
const ofRewards = (bin) => ({ least: bin, ...(bin >= 0.95 ? {} : { most: (bin + 0.05 - 1e-9).toFixed(9) }) });
const ofTokens = (bin) => ({ tokens_from: bin, tokens_to: bin ? 2 * bin - 1 : 0 });

// Opens the list of the trajectories behind a point of a chart.
function explore(changes) {
  location.href = explored(changes);
}
