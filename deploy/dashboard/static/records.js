// Shared by the pages about single records: reading them, links between them, and tables. Everything that a model or a
// user said goes into text nodes only.
"use strict";

// The rest of the path after the page's name is the record's id, whatever characters it has.
const idOfPage = () => decodeURIComponent(location.pathname.split("/").slice(2).join("/"));

const figure = (value, digits = 3) => {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size && (size < 0.001 || size >= 1e6)) return value.toExponential(1);
  return String(Number(value.toFixed(size >= 100 ? 1 : digits)));
};
const signed = (value) => (value == null ? "–" : (value < 0 ? "−" : "+") + figure(Math.abs(value)));
const minus = (text) => String(text).replace("-", "−");
// In the reader's time zone, which is named.
const instant = (ms) => (ms ? new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" }) : "–");
const zone = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts().find((part) => part.type === "timeZoneName")?.value ?? "";
const shortId = (id) => (id.length <= 20 ? id : `${id.slice(0, 8)}…${id.slice(-4)}`);

const link = (href, text, properties = {}) => element("a", { href, ...properties }, text);
const path = (page, id) => `/${page}/${encodeURIComponent(id)}`;
const trajectoryLink = (id, text = shortId(id)) => link(path("trajectory", id), text, { title: id });
const groupLink = (id, text = shortId(id)) => link(path("group", id), text, { title: id });
const versionLink = (version, run, text = `v${version}`) =>
  link(`/version/${version}?run=${encodeURIComponent(run ?? "")}`, text, { title: `Trajectories of version ${version}` });

const words = (text) => String(text ?? "").replaceAll("_", " ");

// A fate in words, with links.
function fateText(record, run) {
  switch (record.fate) {
    case "trained":
      return [`trained, step ${record.step}`, ...(record.version == null || run == null ? [] : [" → ", versionLink(record.version, run)])];
    case "rejected":
      return [`rejected: ${words(record.reason)}`];
    case "waiting":
      return ["waits for a step"];
    case "frozen":
      return ["frozen: never trained"];
    default:
      return [words(record.fate ?? "pending")];
  }
}

// columns: [heading, function from a row to its content, class]. The table scrolls sideways in a region of its own.
function recordTable(label, columns, rows, marked = () => false) {
  const head = element("tr", {}, ...columns.map(([name, , kind]) => element("th", { scope: "col", className: kind ?? "" }, name)));
  const body = rows.map((row) => {
    const line = element("tr", {}, ...columns.map(([, content, kind]) => element("td", { className: kind ?? "" }, ...[content(row)].flat())));
    if (marked(row)) line.setAttribute("aria-current", "true");
    return line;
  });
  const table = element("table", { className: "list records" }, element("thead", {}, head), element("tbody", {}, ...body));
  table.setAttribute("aria-label", label);
  const box = element("div", { className: "scroll", tabIndex: 0 }, table);
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", label);
  return box;
}

// Reads a record and draws it, or says why there is none.
async function showRecord(url, draw) {
  const feed = watchPulse();
  const fail = (text) => {
    byId("problem").textContent = text;
    byId("problem").hidden = false;
  };
  try {
    const response = await fetch(url, { headers: { Accept: "application/json" } });
    const body = await response.json();
    feed.seen();
    if (body.problem) return fail(body.problem);
    draw(body);
    // Links to the other pages keep the run.
    if (body.run) for (const each of document.querySelectorAll("header nav a")) each.search = "?run=" + encodeURIComponent(body.run);
    byId("found").hidden = false;
  } catch (error) {
    fail("The dashboard does not answer: check headrace status, then load the page again.");
    throw error;
  } finally {
    byId("loading").hidden = true;
  }
}
