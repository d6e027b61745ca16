// Shared by all pages: the selection of a run, the stream that updates the page, and small pieces of HTML.
"use strict";

const byId = (id) => document.getElementById(id);
// The reader's time zone, which is named.
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const card = (id, options) => new Chart(byId(id), options);

const element = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};

function fill(id, ...children) {
  byId(id).querySelectorAll(":scope > :not(h2, .about, .cut, details.data)").forEach((node) => node.remove());
  const data = byId(id).querySelector(":scope > details.data");
  if (data) data.before(...children);
  else byId(id).append(...children);
}

// Returns rows of {name, count, colour, address} as horizontal bars; a click on one opens its address.
function barTable(rows) {
  const most = Math.max(...rows.map((row) => row.count));
  return element("table", { className: "bars" }, element("tbody", {}, ...rows.map((row) => {
    const bar = element("div", { className: "bar" });
    bar.style.width = (100 * row.count) / most + "%";
    bar.style.background = `var(${row.colour})`;
    return element("tr", {}, element("td", { className: "name" }, element("a", { href: row.address }, row.name)), element("td", {}, bar),
      element("td", { className: "count" }, row.count.toLocaleString("en-US")));
  })));
}

function drawAlerts(panel) {
  const rows = rowsOf(panel);
  if (!rows.length) return fill("alerts", element("div", { className: "empty" }, "No alerts."));
  fill("alerts", element("p", { className: "zone" }, "Times: " + ZONE), element("table", { className: "list" }, element("tbody", {}, ...rows.map((row) => {
    const severity = element("span", { className: "severity" }, row.severity);
    severity.dataset.severity = row.severity;
    const title = `${row.part}: ${row.kind.replaceAll("_", " ")}`;
    // Alerts of monitors have a card on /watch, which is not shared.
    const address = row.episode && !document.documentElement.dataset.shared && `/watch?${new URLSearchParams({ run: row.run })}#${encodeURIComponent(row.episode)}`;
    return element("tr", {}, element("td", { className: "when" }, moment(row.ms)), element("td", {}, severity),
      element("td", {}, element("strong", {}, address ? element("a", { href: address }, title) : title, ". "), row.message));
  }))));
}

function tile(title, value, note) {
  return element("div", { className: "tile" }, element("h3", {}, title), element("strong", {}, value), element("span", {}, note));
}

// The parameters of the page's address.
const query = () => new URLSearchParams(location.search);

// Changes parameters of the address, which is a saved view; null removes one. The page is updated.
function choose(changes, { replace = false } = {}) {
  const parameters = query();
  for (const [name, value] of Object.entries(changes)) {
    if (value == null || (value === "" && name !== "run")) parameters.delete(name);
    else parameters.set(name, value);
  }
  history[replace ? "replaceState" : "pushState"](null, "", location.pathname + "?" + parameters);
  dispatchEvent(new Event("chosen"));
}

// `every` is the label of the choice "all runs", on pages that offer it.
function drawRuns(panel, chosen, every) {
  const names = rowsOf(panel).map((row) => row.run);
  if (chosen && !names.includes(chosen)) names.push(chosen);
  const select = byId("run");
  const wanted = JSON.stringify([names, chosen]);
  if (select.dataset.names === wanted) return;
  select.dataset.names = wanted;
  select.replaceChildren(...(every ? [new Option(every, "")] : []), ...names.filter(Boolean).map((name) => new Option(name, name)));
  select.value = chosen;
}

// Keeps the page up to date: calls `draw` with each new snapshot, and when the colour scheme changes.
function livePage(draw, { every } = {}) {
  let latest = null;
  let stream = null;
  const path = location.pathname.replace(/\/$/, "");
  const feed = watchFeed();

  function drawAll() {
    byId("problem").hidden = !latest.problem;
    byId("problem").textContent = latest.problem ?? "";
    const [activity] = rowsOf(latest.panels.activity ?? {});
    feed.facts(latest.run ? activity ?? null : null);
    document.body.dataset.problem = latest.problem ? "yes" : "no";
    if (latest.panels.runs && byId("run")) drawRuns(latest.panels.runs, latest.run, every);
    // Links to the other pages keep the selected run.
    for (const link of document.querySelectorAll("nav a")) link.search = latest.problem ? "" : "?run=" + encodeURIComponent(latest.run);
    if (!latest.problem) draw(latest);
  }

  function connect() {
    stream?.close();
    stream = new EventSource(path + "/stream" + location.search);
    stream.addEventListener("same", () => feed.seen());
    stream.addEventListener("pulse", (event) => feed.pulse(JSON.parse(event.data)));
    stream.addEventListener("slow", (event) => feed.slow(Number(event.data)));
    stream.addEventListener("expired", () => {
      stream.close();
      feed.expired();
    });
    stream.addEventListener("message", (event) => {
      const fresh = JSON.parse(event.data);
      latest = fresh.partial ? { ...fresh, panels: { ...latest.panels, ...fresh.panels } } : fresh;
      drawAll();
      feed.seen();
    });
    stream.addEventListener("error", async () => {
      feed.lost();
      if (stream.readyState !== EventSource.CLOSED) return;
      // The browser does not retry after a refusal: the answer says why.
      const answer = await fetch(path + "/api/snapshot" + location.search).catch(() => null);
      const problem = (await answer?.json().catch(() => null))?.problem;
      if (problem) {
        feed.refused();
        byId("problem").hidden = false;
        byId("problem").textContent = problem;
      } else setTimeout(connect, 2000);
    });
  }

  byId("run")?.addEventListener("change", (event) => choose({ run: event.target.value }));
  for (const change of ["chosen", "popstate"]) addEventListener(change, connect);
  // A hidden page sends no requests; it is updated when it is shown again.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      stream?.close();
      feed.hidden();
    } else connect();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => latest && drawAll());
  if (!document.hidden) connect();
}

// What a page says if it cannot even load what it is made of.
function unreachable(error) {
  console.warn(error);
  byId("problem").hidden = false;
  byId("problem").textContent = "The dashboard does not answer: reload the page.";
}
