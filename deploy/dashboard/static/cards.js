// Draws panels from their specifications: a card for each, with its chart or table, its rows, its SQL and its files.
"use strict";

const KINDS = { line: "lines", steps: "steps", bars: "bars", distribution: "steps" };

// The specifications of this page's panels, by name.
async function specifications(path) {
  const answer = await fetch((document.documentElement.dataset.shared ?? "") + path + "/api/panels");
  return new Map((await answer.json()).map((spec) => [spec.name, spec]));
}

// The query of a specification with the values of the page, as any client can run it.
function sqlOf(spec, parameters) {
  const quoted = (text) => "'" + text.replaceAll("\\", "\\\\").replaceAll("'", "\\'") + "'";
  const lines = spec.sql.replace(/\{(\w+):(\w+)\}/g, (_, name, type) => {
    const value = parameters[name] ?? "";
    return type === "String" ? quoted(value) : String(Number(value || 0));
  }).split("\n");
  const indent = Math.min(...lines.filter((line) => line.trim()).slice(lines[0].trim() ? 1 : 0).map((line) => line.search(/\S/)), 40);
  return lines.map((line) => line.slice(0, indent).trim() + line.slice(indent)).join("\n").trim();
}

class Cards {
  // specs: those to be drawn; overrides by name: { options of the chart, draw(panel, card), order, caption, links, search, table }
  constructor(box, specs, overrides = {}) {
    this.cards = new Map();
    this.overrides = overrides;
    this.parameters = {};
    this.smooth = 0;
    let grid = null;
    let section = null;
    for (const spec of specs) {
      if (!grid || spec.section !== section) {
        grid = element("div", { className: "cards" });
        box.append(...(spec.section ? [element("h2", { className: "heading" }, spec.section)] : []), grid);
        section = spec.section;
      }
      this.add(grid, spec, overrides[spec.name] ?? {});
    }
  }

  add(grid, spec, { options = {}, about, links, search, table }) {
    const card = element("section", { id: spec.name, className: spec.wide ? "card wide" : "card" },
      element("h2", {}, spec.title), element("p", { className: "about" }, about ?? spec.about));
    const cut = element("p", { className: "cut", hidden: true });
    const body = element("div");
    card.append(cut, body);
    const held = { spec, card, cut, body, chart: null, table: null, columns: null, shown: null };
    if (spec.facet) held.charts = new Map();
    else if (spec.form in KINDS) held.chart = new Chart(body, { ...this.chartOptions(spec), ...options });
    else if (spec.form === "table" && !this.overrides[spec.name]?.draw) {
      held.tableBox = body;
      held.makeTable = () => new DataTable(body, { columns: spec.values, title: spec.title, links, search, ...table });
    }
    card.append(this.dataOf(held));
    grid.append(card);
    this.cards.set(spec.name, held);
  }

  chartOptions(spec) {
    const [value] = spec.values;
    const format = formatOf(value.unit);
    const isShare = value.unit === "share" || value.unit === "share of the largest reward";
    const ticks = { share: (y) => y.toFixed(2), "share of the largest reward": (y) => y.toFixed(2), version: formats.version,
      number: formats.number, s: formats.number, count: compact.format, tokens: compact.format }[value.unit];
    const options = {
      title: spec.title, kind: KINDS[spec.form], format, yFormat: ticks, xLabel: spec.x.label, xFormat: formatOf(spec.x.unit),
      time: spec.x.unit === "ms", whole: ["count", "version"].includes(value.unit), height: spec.wide ? 280 : 220,
      labels: spec.series ? {} : Object.fromEntries(spec.values.map(({ column, label }) => [column, label])),
    };
    if (isShare && spec.form === "distribution") options.yFormat = (y) => Math.round(100 * y) + " %";
    return options;
  }

  // What the page shows: parameters of its address, by which charts are cut, and the span of the smoothing.
  select(parameters, smooth) {
    this.parameters = parameters;
    this.smooth = smooth;
    const active = Object.keys(parameters).filter((name) => parameters[name]);
    for (const { spec, cut } of this.cards.values()) {
      const ignored = active.filter((name) => !["run", "by"].includes(name) && this.cuts.includes(name) && !spec.cuts.includes(name));
      if (parameters.by && !spec.splits && spec.cuts.length === 0) ignored.push("by");
      cut.hidden = !ignored.length;
      cut.textContent = "Whole run: the slices above do not apply here.";
    }
  }

  cuts = [];

  draw(panels) {
    for (const [name, held] of this.cards) {
      const { spec } = held;
      const columns = panels[spec.source || name];
      held.columns = columns;
      const { draw } = this.overrides[name] ?? {};
      if (draw) draw(columns, held);
      else if (spec.facet) this.drawFacets(held, columns);
      else if (held.chart) this.drawChart(held, columns);
      else this.drawTable(held, columns);
      if (held.data?.open) this.fillData(held);
    }
  }

  drawTable(held, columns) {
    const rows = rowsOf(columns);
    if (!rows.length) {
      held.table = null;
      held.body.replaceChildren(element("div", { className: "empty" }, ...marked(held.spec.empty)));
      return;
    }
    if (!held.table) {
      held.body.replaceChildren();
      held.table = held.makeTable();
    }
    held.table.draw(rows);
  }

  drawChart(held, columns, order = this.overrides[held.spec.name]?.order ?? []) {
    const { spec, chart } = held;
    const aligned = alignedOf(spec, columns, order);
    if (!aligned.xs.length || !aligned.names.length) return chart.empty(spec.empty);
    const { names, hidden } = this.drawSeries(chart, spec, aligned);
    held.body.querySelector(":scope > .note")?.remove();
    if (hidden) {
      held.body.append(element("p", { className: "note" }, `${names.length} of ${aligned.names.length} series, those with the most observations: select a slice above to see another.`));
    }
  }

  drawSeries(chart, spec, aligned) {
    const { names, hidden } = largest(aligned);
    const keep = names.map((name) => aligned.names.indexOf(name));
    const pick = (arrays) => arrays && keep.map((at) => arrays[at]);
    const [low, high, n] = aligned.others;
    if (aligned.bins) chart.options.xFormat = (at) => (aligned.bins[at] == null ? "" : formatOf(spec.x.unit)(aligned.bins[at]));
    chart.draw(aligned.xs, names, pick(aligned.arrays), { low: pick(low), high: pick(high), n: pick(n),
      smooth: spec.form === "line" && !chart.options.time ? this.smooth : 0, bins: aligned.bins });
    return { names, hidden };
  }

  // A small chart for each value of the facet; `caption` is a function from its name and rows to what stands beside it.
  drawFacets(held, columns) {
    const { spec, body, charts } = held;
    const { options = {}, caption = () => "", order = [] } = this.overrides[spec.name] ?? {};
    const rows = rowsOf(columns);
    const names = [...new Set(rows.map((row) => row[spec.facet]))].sort();
    const wanted = JSON.stringify(names);
    if (body.dataset.facets !== wanted) {
      body.dataset.facets = wanted;
      charts.clear();
      const boxes = names.map((name) => {
        const box = element("figure", {}, element("figcaption", {}, element("strong", {}, name), element("span", {})));
        box.dataset.facet = name;
        charts.set(name, { box, chart: new Chart(box, { ...this.chartOptions(spec), ...options, height: 150, title: `${spec.title}: ${name}` }) });
        return box;
      });
      body.replaceChildren(names.length ? element("div", { className: "facets" }, ...boxes) : element("div", { className: "empty" }, ...marked(spec.empty)));
    }
    for (const [name, { box, chart }] of charts) {
      const own = rows.filter((row) => row[spec.facet] === name).map((row) => ({ ...row, [spec.series]: row[spec.series].slice(name.length + 2) }));
      this.drawSeries(chart, spec, alignedOf(spec, columnsOf(own), order));
      box.querySelector("span").textContent = caption(name, own);
    }
  }

  dataOf(held) {
    const box = element("details", { className: "data" }, element("summary", {}, "Rows, SQL and files"));
    held.data = box;
    box.addEventListener("toggle", () => box.open && this.fillData(held));
    return box;
  }

  fillData(held) {
    const { spec, data } = held;
    const scrolled = data.querySelector(".rows")?.scrollTop ?? 0;
    const path = location.pathname.replace(/\/$/, "");
    const address = (format) => `${path}/api/panels/${spec.name}?${new URLSearchParams({ ...this.parameters, format })}`;
    const columns = held.columns ?? {};
    const names = spec.source ? [spec.x.column, ...spec.values.map((each) => each.column)].filter((name) => name in columns) : Object.keys(columns);
    const axes = new Map([spec.x, ...spec.values].filter(Boolean).map((axis) => [axis.column, axis]));
    const rows = rowsOf(columns).slice(-SHOWN_ROWS);
    const cells = rows.map((row) => element("tr", {}, ...names.map((name) => element("td", {}, row[name] == null ? "" : formatOf(axes.get(name)?.unit)(row[name])))));
    const all = columns[names[0]]?.length ?? 0;
    data.replaceChildren(data.querySelector("summary"),
      element("p", { className: "note" }, element("a", { href: address("csv"), download: "" }, "CSV"), " · ",
        element("a", { href: address("parquet"), download: "" }, "Parquet"),
        all > rows.length ? ` · the last ${rows.length} of ${all.toLocaleString("en-US")} rows:` : ` · ${all.toLocaleString("en-US")} rows:`),
      element("div", { className: "scroll rows", tabIndex: 0 }, element("table", { className: "list" },
        element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, axes.get(name)?.label ?? name.replaceAll("_", " "))))),
        element("tbody", {}, ...cells))),
      element("pre", { tabIndex: 0 }, sqlOf(spec, this.parameters)));
    data.querySelector(".rows").scrollTop = scrolled;
  }
}

// Words with parts in backquotes as commands.
const marked = (text) => text.split("`").map((piece, at) => element(at % 2 ? "code" : "span", {}, piece));

// A panel's columns as aligned arrays: { xs, names, arrays, others: [low, high, n], bins }.
function alignedOf(spec, columns, order = []) {
  const x = spec.x.column;
  const others = [spec.low, spec.high, spec.n];
  const scale = (value) => (spec.x.unit === "ms" && value != null ? value / 1000 : value);
  let rows = rowsOf(columns).filter((row) => row[x] != null);
  if (!spec.series) {
    const present = spec.values.map(({ column }) => column).filter((name) => columns[name]?.some((value) => value != null));
    rows.sort((a, b) => a[x] - b[x]);
    const n = spec.n ? present.map(() => rows.map((row) => row[spec.n])) : null;
    return { xs: rows.map((row) => scale(row[x])), names: present, arrays: present.map((name) => rows.map((row) => row[name])), others: [null, null, n] };
  }
  if (spec.form !== "distribution") {
    return pivot(rows.map((row) => ({ ...row, [x]: scale(row[x]) })), x, spec.series, spec.values[0].column, order, others);
  }
  // Bins stand side by side, whatever their width, those without trajectories too; where a series has none, its share is 0.
  const bins = allBins([...new Set(rows.map((row) => row[x]))].sort((a, b) => a - b), spec.x.unit);
  rows = rows.map((row) => ({ ...row, [x]: bins.indexOf(row[x]) }));
  const table = pivot(rows, x, spec.series, spec.values[0].column, order, [spec.n]);
  const [n] = table.others;
  const xs = [...bins.keys(), bins.length]; // With the end of the last bin, which has its value.
  const place = new Map(table.xs.map((bin, at) => [bin, at]));
  const arrays = table.arrays.map((array) => xs.map((bin) => array[place.get(Math.min(bin, bins.length - 1))] ?? 0));
  const counts = n?.map((array) => { const count = array.find((value) => value != null) ?? null; return xs.map(() => count); });
  return { ...table, xs, arrays, others: [null, null, counts ?? null], bins };
}

// Every bin from the first to the last of `found`: rewards in steps of 0.05, lengths in powers of two. A gap left out
// would make distant values neighbours.
function allBins(found, unit) {
  const next = unit === "tokens" ? (bin) => Math.max(1, 2 * bin) : (bin) => Math.round(20 * bin + 1) / 20;
  const bins = found.slice(0, 1);
  while (bins.length && bins[bins.length - 1] < found[found.length - 1] && bins.length < 1000) bins.push(next(bins[bins.length - 1]));
  return found.every((bin) => bins.includes(bin)) ? bins : found;
}

// The names of the MAX_SERIES series with the most observations, in their order.
function largest({ names, arrays, others: [, , n] }) {
  if (names.length <= MAX_SERIES) return { names, hidden: false };
  const weight = (at) => arrays[at].reduce((sum, value, x) => sum + (value == null ? 0 : n?.[at][x] ?? 1), 0);
  const kept = new Set(names.map((name, at) => [weight(at), name]).sort((a, b) => b[0] - a[0]).slice(0, MAX_SERIES).map(([, name]) => name));
  return { names: names.filter((name) => kept.has(name)), hidden: true };
}
