// The monitors' alerts: what alarms, since when, who shows it; open ones first, critical ones before warnings.
"use strict";

// Without a run in the address all runs are shown: an alert of another run matters as much.
if (!new URLSearchParams(location.search).has("run")) history.replaceState(null, "", `?run=${location.hash}`);

const SVG = "http://www.w3.org/2000/svg";
const svg = (tag, attributes, ...children) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

// A line of `values` over windows, with a dashed line per bound: a number, or values of its own. A click on a value, or
// Enter on it, opens the address of `addresses` there; `said` is what a screen reader hears of it.
function sparkline(label, values, bound, boundAbout, addresses, said) {
  const [width, height, pad] = [260, 56, 4];
  const bounds = Array.isArray(bound) ? bound : values.map(() => bound);
  const all = [...values, ...bounds].filter((value) => value != null);
  const [low, high] = [Math.min(0, ...all), Math.max(...all, 1e-9)];
  const x = (at) => pad + (at * (width - 2 * pad)) / Math.max(1, values.length - 1);
  const y = (value) => height - pad - ((value - low) * (height - 2 * pad)) / (high - low || 1);
  const points = (list) => list.map((value, at) => (value == null ? null : `${x(at).toFixed(1)},${y(value).toFixed(1)}`)).filter(Boolean).join(" ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "spark", role: "img", tabindex: 0,
    "aria-label": `${label}. Arrow keys move over the values, Enter lists the trajectories.` },
  svg("polyline", { class: "bound", points: points(bounds) }),
  svg("polyline", { class: "line", points: points(values) }));
  const mark = svg("line", { class: "mark", y1: 0, y2: height, visibility: "hidden" });
  const heard = element("output", { className: "said" });
  let now = null;
  const move = (at) => {
    now = Math.min(values.length - 1, Math.max(0, at));
    for (const end of ["x1", "x2"]) mark.setAttribute(end, x(now));
    mark.setAttribute("visibility", "visible");
  };
  const pointed = ({ clientX }) => {
    const { left, width: shown } = picture.getBoundingClientRect();
    return Math.round((((clientX - left) / shown) * width - pad) * Math.max(1, values.length - 1) / (width - 2 * pad));
  };
  picture.append(mark);
  picture.addEventListener("pointermove", (event) => move(pointed(event)));
  picture.addEventListener("click", (event) => { move(pointed(event)); location.href = addresses[now]; });
  picture.addEventListener("keydown", (event) => {
    const at = now ?? values.length;
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: values.length - 1 }[event.key];
    if (next != null) {
      move(next);
      heard.textContent = said[now];
      event.preventDefault();
    } else if (event.key === "Enter" && now != null) location.href = addresses[now];
  });
  const about = bounds.some((value) => value != null) ? boundAbout : "";
  return element("figure", {}, element("figcaption", {}, label, element("span", {}, about)), picture, heard);
}

const place = (row) => [row.run && `run ${row.run}`, row.subject !== row.run && row.subject, row.agent && `agent ${row.agent}`, row.task_source && `source ${row.task_source}`, row.spec].filter(Boolean).join(" · ");
const usual = (row) => (row.value == null ? "" : [minus(figure(row.value)), row.expected == null ? "" : `usual ${minus(figure(row.expected))}`, row.limit == null ? "" : `alarming from ${figure(row.limit)}`].filter(Boolean).join(", "));

// What an alert of the process on call has measured beside its value: a partition, the commonest causes.
function measured(row) {
  const found = Object.entries(row.measured ? JSON.parse(row.measured) : {}).filter(([name]) => !["value", "limit", "subject"].includes(name));
  if (!found.length) return [];
  return [element("p", { className: "about measured" }, found.map(([name, value]) => `${name} ${typeof value === "number" ? figure(value) : value}`).join(" · "))];
}

// The address of the list of the trajectories that a window ends with: those of its newest version in the alert's place.
function listOfWindow(row, { version }) {
  const filters = Object.entries({ agent: row.agent, source: row.task_source, from: version, to: version });
  return "/explore?" + new URLSearchParams({ run: row.run, ...Object.fromEntries(filters.filter(([, value]) => value != null && value !== "")) });
}

function alertCard(row, readings) {
  const severity = element("span", { className: "severity" }, row.severity);
  severity.dataset.severity = row.severity;
  const since = row.since_version == null ? "" : [" · since ", versionLink(row.since_version, row.run)];
  const card = element("article", { className: "card alert", id: row.episode, tabIndex: -1 },
    element("h3", {}, severity, " ", words(row.monitor), element("span", { className: "reading" }, ` ${usual(row)}`)),
    element("p", { className: "about" }, place(row), ...since, ` · opened ${instant(row.opened_ms)} ${zone} · strength ${figure(row.strength, 2)} (it alarms from 1 on)`),
    element("p", {}, row.message.split(" Look at the examples")[0]), ...measured(row));
  if (row.runbook) card.append(element("p", {}, link(`/runbook/${encodeURIComponent(row.runbook)}`, "How to find the cause"), " ", element("code", {}, `headrace runbook ${row.runbook}`)));
  if (row.pauses) card.append(element("p", { className: "paused" }, "The trainer admits no trajectory of this task source until the alert is resolved, or somebody resumes admission."));
  else if (row.resumed_by.length) card.append(element("p", {}, `Admission was resumed by ${row.resumed_by.join(", ")}.`));
  card.setAttribute("aria-label", `${row.severity}: ${words(row.monitor)}`);
  card.dataset.severity = row.severity;
  if (readings.length > 1) {
    const versions = readings.map((each) => each.version).filter((each) => each != null);
    const span = versions.length ? `v${versions[0]} to v${versions[versions.length - 1]}` : `${readings.length} windows`;
    const addresses = readings.map((each) => listOfWindow(row, each));
    const heard = readings.map((each) => `window ${each.window}${each.version == null ? "" : `, v${each.version}`}: reading ${minus(figure(each.value))}, strength ${figure(each.strength, 2)}`);
    card.append(element("div", { className: "sparks" },
      sparkline(`Reading, ${span}`, readings.map((each) => each.value), readings.map((each) => each.expected), "dashed: what is usual", addresses, heard),
      sparkline(`Strength, ${span}`, readings.map((each) => each.strength), 1, "dashed: alarms from 1", addresses, heard)),
    element("details", {}, element("summary", {}, "Readings as a table"), recordTable(`Readings of ${words(row.monitor)}`, [
      ["Window", (each) => figure(each.window), "number"], ["Version", (each) => (each.version == null ? "–" : versionLink(each.version, row.run)), "number"],
      ["Reading", (each) => minus(figure(each.value)), "number"], ["Usual", (each) => minus(figure(each.expected)), "number"],
      ["Strength", (each) => figure(each.strength, 2), "number"],
    ], [...readings].reverse())));
  }
  if (row.examples.length) card.append(element("p", { className: "examples" }, element("strong", {}, "Trajectories that show it: "),
    ...row.examples.flatMap((id) => [trajectoryLink(id), " "])));
  card.append(acknowledgeForm(row));
  return card;
}

// Names that this page has sent, until the sink has stored them.
const sent = new Map();

function acknowledgeForm(row) {
  const seen = [...new Set([...row.acknowledged_by, ...(sent.get(row.episode) ?? [])])];
  const box = element("div", { className: "ack" });
  if (seen.length) box.append(element("p", {}, `Acknowledged by ${seen.join(", ")}. `));
  const by = element("input", { type: "text", name: "by", maxLength: 200, required: true, autocomplete: "nickname", value: localStorage.getItem("headrace.by") ?? "" });
  const status = element("span", { className: "ack-status" });
  status.setAttribute("role", "status");
  const form = element("form", {}, element("label", {}, "Your name ", by), " ", element("button", { type: "submit" }, "Acknowledge"), " ", status);
  if (row.pauses) form.insertBefore(element("button", { type: "submit", value: "resume" }, "Acknowledge and resume admission"), status);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const resume = event.submitter?.value === "resume";
    const name = by.value.trim();
    if (!name) return;
    status.textContent = "sending …";
    try {
      const response = await fetch("/api/watch/acknowledge", { method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ episode: row.episode, by: name, resume }) });
      const body = await response.json();
      if (!response.ok) {
        status.textContent = body.problem ?? `refused (${response.status})`;
        return;
      }
      localStorage.setItem("headrace.by", name);
      sent.set(row.episode, body.acknowledged_by);
      box.replaceWith(acknowledgeForm(row));
    } catch {
      status.textContent = "the dashboard does not answer";
    }
  });
  box.append(form);
  return box;
}

// Cards by episode, with what they were made of: those that are unchanged stay, with what is being typed in them.
const cards = new Map();

function drawOpen(rows, readings) {
  const wanted = rows.map((row) => {
    const own = readings.filter((each) => each.episode === row.episode).sort((a, b) => a.window - b.window);
    const made = JSON.stringify([row, own]);
    const known = cards.get(row.episode);
    const isTyping = known?.node.contains(document.activeElement) && document.activeElement.matches("input");
    if (!known || (known.made !== made && !isTyping)) cards.set(row.episode, { made, node: alertCard(row, own) });
    return cards.get(row.episode).node;
  });
  for (const id of cards.keys()) if (!rows.some((row) => row.episode === id)) cards.delete(id);
  const box = byId("open");
  if (wanted.length !== box.children.length || wanted.some((node, at) => box.children[at] !== node)) box.replaceChildren(...wanted);
}

function drawResolved(rows) {
  const box = byId("resolved");
  box.hidden = !rows.length;
  box.querySelector("summary").textContent = `${rows.length} resolved`;
  box.querySelector("div").replaceChildren(...rows.map((row) => element("article", { className: "card alert resolved", id: row.episode },
    element("h3", {}, words(row.monitor), element("span", { className: "reading" }, ` ${usual(row)}`)),
    element("p", { className: "about" }, place(row), ` · ${instant(row.opened_ms)} to ${instant(row.changed_ms)} ${zone}`,
      row.acknowledged_by.length ? ` · acknowledged by ${row.acknowledged_by.join(", ")}` : ""),
    element("p", {}, row.message),
    element("p", { className: "examples" }, "Trajectories that showed it: ", ...row.examples.flatMap((id) => [trajectoryLink(id), " "])))));
}

function drawWatched(rows) {
  if (!rows.length) {
    fill("watched", element("div", { className: "empty" }, element("p", {},
      "Nothing yet. The processors observe and watch run in the process workers, which ", element("code", {}, "headrace up"), " starts; a window ends at a new policy version, with at least 32 trajectories. ",
      element("code", {}, "headrace watch plant search-once --live"), " sends simulated attempts of a policy that learns a hack: within minutes it alarms here, with attempts to read, and nothing is trained on them.")));
    return;
  }
  fill("watched", recordTable("What the monitors read", [
    ["Observations", (row) => row.lane], ["Run", (row) => row.run || "–"], ["Agent", (row) => row.agent || "–"], ["Source", (row) => row.task_source || "–"],
    ["Spec", (row) => row.spec || "–"], ["Windows", (row) => figure(row.windows), "number"],
    ["Judged", (row) => (row.windows > 30 ? "yes" : row.windows > 25 ? "mostly, all from window 31 on" : "mostly from window 26 on")], [`Last (${zone})`, (row) => instant(row.last_ms)],
  ], rows));
}

let arrived = false;
livePage((snapshot) => {
  const episodes = rowsOf(snapshot.panels.episodes);
  const open = episodes.filter((row) => row.is_open);
  const elsewhere = rowsOf(snapshot.panels.elsewhere)[0]?.open ?? 0;
  byId("about").replaceChildren(open.length ? `${open.length} open.` : "None is open.");
  if (elsewhere) byId("about").append(" ", link("/watch?run=", `${elsewhere} more in other runs`), ".");
  drawOpen(open, rowsOf(snapshot.panels.readings));
  drawResolved(episodes.filter((row) => !row.is_open));
  drawWatched(rowsOf(snapshot.panels.watched));
  const wanted = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (wanted && !arrived) {
    const folded = wanted.closest("details");
    if (folded) folded.open = true;
    wanted.scrollIntoView();
    wanted.focus();
  }
  arrived = true;
}, { every: "all runs" });
