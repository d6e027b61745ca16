// Charts with uPlot: lines and stacked bars, updated in place as long as their series stay the same.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = 8;
const WHOLE = [1, 2, 5].flatMap((first) => Array.from({ length: 8 }, (_, zeros) => first * 10 ** zeros)).sort((a, b) => a - b);
const FEW = 30; // Values that rest on fewer observations are faded.
const MAX_SERIES = 8;
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

const formats = {
  share: (value) => (value == null ? "–" : value.toFixed(3)),
  count: (value) => (value == null ? "–" : compact.format(value)),
  // Few digits for any magnitude: 0.643, 1.2e-6, 5.3K.
  number: (value) => {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size >= 1000) return compact.format(value);
    return size && size < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  },
  version: (value) => (value == null ? "–" : "v" + value),
};

// Returns the columns of a panel as rows.
function rowsOf(columns) {
  const names = Object.keys(columns ?? {});
  const length = names.length ? columns[names[0]].length : 0;
  return Array.from({ length }, (_, at) => Object.fromEntries(names.map((name) => [name, columns[name][at]])));
}

// Returns rows that have the same names as columns.
const columnsOf = (rows) => Object.fromEntries(Object.keys(rows[0] ?? {}).map((name) => [name, rows.map((row) => row[name])]));

// The format of a unit of a panel's specification.
const formatOf = (unit) => ({
  count: formats.count, number: formats.number, "share of the largest reward": formats.share, share: formats.share,
  tokens: formats.count, s: (value) => formats.number(value) + (value == null ? "" : " s"), version: formats.version,
  step: (value) => (value == null ? "–" : String(value)), ms: (value) => (value == null ? "–" : moment(value)),
})[unit] ?? ((value) => (value == null ? "–" : String(value)));

// Returns long rows (x, series, y) as uPlot's aligned arrays; series in `order` come last, in this order, after the
// others, which are sorted by name. `others` are more columns, aligned in the same way.
function pivot(rows, xKey, seriesKey, yKey, order = [], others = []) {
  const xs = [...new Set(rows.map((row) => row[xKey]))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, at) => [x, at]));
  const found = [...new Set(rows.map((row) => row[seriesKey]))].sort();
  const names = [...found.filter((name) => !order.includes(name)), ...order.filter((name) => found.includes(name))];
  const aligned = (key) => {
    const arrays = new Map(names.map((name) => [name, new Array(xs.length).fill(null)]));
    for (const row of rows) arrays.get(row[seriesKey])[place.get(row[xKey])] = row[key];
    return names.map((name) => arrays.get(name));
  };
  return { xs, names, arrays: aligned(yKey), others: others.map((key) => (key ? aligned(key) : null)) };
}

// Mean of each value and its neighbours within `span` values in all, weighted by their number of observations, and how
// many observations each mean rests on: { means, sizes }.
function smoothed(values, weights, span) {
  const side = Math.floor(span / 2);
  const sizes = [];
  const means = values.map((value, at) => {
    let [sum, weight] = [0, 0];
    for (let near = Math.max(0, at - side); near <= Math.min(values.length - 1, at + side); near++) {
      if (values[near] == null) continue;
      const w = weights?.[near] ?? 1;
      sum += values[near] * w;
      weight += w;
    }
    sizes.push(weight);
    return value == null || !weight ? value : sum / weight;
  });
  return { means, sizes };
}

class Chart {
  // options: kind ("lines" | "steps" | "bars"), format of values, xFormat and yFormat of ticks, xLabel, time, height,
  // range of y, whole (no fractions on y), bounds (values with a dashed line), title (the name that screen readers
  // say), open (called with x, of a histogram the lower end of the bin, with the name of the series nearest to the pointer
  // or chosen by keys, and its value there), and by series: labels, colours, widths, dots (names of the series with
  // points)
  constructor(card, options) {
    this.box = document.createElement("div");
    card.append(this.box);
    this.options = { height: 220, format: formats.count, xFormat: formats.version, ...options };
    this.plot = null;
    this.signature = "";
    new ResizeObserver(() => this.resize()).observe(card);
  }

  resize() {
    const width = this.box.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: this.options.height });
  }

  // Shows a text in place of the chart. Parts in backquotes are commands.
  empty(text) {
    const box = document.createElement("div");
    const words = document.createElement("p");
    box.className = "empty";
    text.split("`").forEach((piece, at) => {
      const node = document.createElement(at % 2 ? "code" : "span");
      node.textContent = piece;
      words.append(node);
    });
    box.append(words);
    this.show(box);
  }

  // Shows another node in place of the chart.
  show(node) {
    this.drop();
    this.box.replaceChildren(node);
    this.signature = "";
  }

  drop() {
    this.plot?.destroy();
    this.plot = null;
  }

  // certainty: low, high and n, arrays as `arrays`, each null if unknown; smooth: span of the smoothing; bins: the lower
  // ends of the bins at xs, of a histogram.
  draw(xs, names, arrays, { low = null, high = null, n = null, smooth = 0, bins = null } = {}) {
    const stacked = this.options.kind === "bars";
    this.raw = arrays;
    this.bins = bins;
    this.certainty = { low: smooth > 1 ? null : low, high: smooth > 1 ? null : high, n };
    this.bounds = low && high ? { low, high } : null;
    const smoothing = smooth > 1 ? arrays.map((values, at) => smoothed(values, n?.[at], smooth)) : null;
    const lines = smoothing ? smoothing.map(({ means }) => means) : arrays;
    this.sizes = n && smoothing ? smoothing.map(({ sizes }) => sizes) : n;
    this.points = smoothing ? arrays : null;
    const data = [xs, ...(stacked ? cumulate(arrays) : lines)];
    const signature = JSON.stringify([names, Boolean(n), matchMedia("(prefers-color-scheme: dark)").matches]);
    const drawn = JSON.stringify([data, this.certainty]);
    if (this.plot && signature === this.signature) {
      // A new snapshot usually changes few charts: comparing the data is cheaper than repainting all of them.
      if (drawn !== this.drawn) this.plot.setData(data);
    } else {
      this.drop();
      this.box.replaceChildren();
      this.names = names;
      this.picked = null;
      this.plot = new uPlot(this.uplotOptions(names, data), data, this.box);
      this.signature = signature;
      this.reach();
    }
    this.drawn = drawn;
    this.showLast();
  }

  // The keyboard reaches the chart: arrows move over the values, which are said, those up and down choose a series, Enter
  // opens what a click opens. The names in the legend are buttons that hide a series and show it again.
  reach() {
    const over = this.plot.over;
    const names = [...this.plot.root.querySelectorAll(".u-legend .u-series th")];
    const press = () => names.forEach((name, at) => at && name.setAttribute("aria-pressed", String(this.plot.series[at].show)));
    for (const name of names.slice(1)) {  // the first is the horizontal axis
      Object.assign(name, { tabIndex: 0, role: "button" });
      name.addEventListener("click", press);
      name.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        name.click();
      });
    }
    press();
    const said = Object.assign(document.createElement("output"), { className: "said" });
    this.plot.root.append(said);
    this.plot.root.querySelector("canvas").setAttribute("aria-hidden", "true");
    over.tabIndex = 0;
    over.setAttribute("role", "img");
    over.setAttribute("aria-label", `${this.options.title ?? "Chart"}: ${this.names.map((name) => this.labelOf(name)).join(", ")}. `
      + "Arrow keys move over the values" + (this.names.length > 1 ? " and series" : "") + (this.options.open ? ", Enter lists the trajectories." : "."));
    over.addEventListener("keydown", (event) => {
      const last = this.plot.data[0].length - 1;
      const at = this.plot.cursor.idx ?? last + 1;
      const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, ArrowUp: at, ArrowDown: at }[event.key];
      if (next != null) {
        const idx = Math.min(last, Math.max(0, next));
        const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
        if (step) this.pick(idx, step);
        this.plot.setCursor({ left: this.plot.valToPos(this.plot.data[0][idx], "x"), top: 0 });
        const heard = this.names.map((_, each) => each).filter((each) => this.picked == null || each === this.picked);
        said.textContent = [this.xText(idx), ...heard.map((each) => `${this.labelOf(this.names[each])} ${this.valueText(each, idx)}`)].join(", ");
        event.preventDefault();
      } else if (event.key === "Enter" && this.options.open && this.plot.cursor.idx != null) {
        this.open(this.plot.cursor.idx, this.names[this.names.length === 1 ? 0 : this.picked] ?? null);
      }
    });
    if (!this.options.open) return;
    let pressed = 0;
    over.style.cursor = "pointer";
    over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    over.addEventListener("click", (event) => {
      // A drag zooms.
      if (Math.abs(event.clientX - pressed) > 3 || this.plot.cursor.idx == null) return;
      const at = this.pointed();
      this.open(at, this.nearest(at));
    });
  }

  // Chooses the next series in the direction of `step` that has a value at `idx`.
  pick(idx, step) {
    const all = this.names.length;
    const from = this.picked ?? (step > 0 ? -1 : all);
    const next = this.names.map((_, each) => (from + step * (each + 1) + 2 * all) % all).find((each) => this.raw[each][idx] != null && this.plot.series[each + 1].show);
    this.picked = next ?? null;
  }

  open(at, picked) {
    const has = (name) => this.raw[this.names.indexOf(name)]?.[at] != null;
    const series = has(picked) ? picked : null;
    const values = this.names.filter((name) => (series ?? name) === name && has(name)).map((name) => this.raw[this.names.indexOf(name)][at]);
    const x = this.bins ? this.bins[Math.min(at, this.bins.length - 1)] : this.plot.data[0][at];
    this.options.open(x, series, values.length ? Math.max(...values) : null);
  }

  // The index of the value under the pointer: the nearest; of steps, which keep their value, the last one before it.
  pointed() {
    const { idx, left } = this.plot.cursor;
    const xs = this.plot.data[0];
    return this.options.kind === "steps" && idx > 0 && this.plot.posToVal(left, "x") < xs[idx] ? idx - 1 : idx;
  }

  labelOf(name) {
    return this.options.labels?.[name] ?? name.replaceAll("_", " ");
  }

  xText(idx) {
    const x = this.plot.data[0][idx];
    return this.options.time ? clock(x * 1000) : this.options.xFormat(x);
  }

  // The series at `idx` whose line is nearest to the pointer; of stacked bars, that in whose piece the pointer is.
  nearest(idx) {
    const { top } = this.plot.cursor;
    const gaps = this.names.map((name, at) => {
      const value = this.plot.data[at + 1][idx];
      if (value == null || !this.plot.series[at + 1].show) return Infinity;
      const gap = this.plot.valToPos(value, "y") - top;
      if (this.options.kind !== "bars") return Math.abs(gap);
      return this.raw[at][idx] ? (gap <= 0 ? -gap : 1e6 + gap) : Infinity;
    });
    const least = gaps.indexOf(Math.min(...gaps));
    return gaps[least] === Infinity ? null : this.names[least];
  }

  valueText(at, idx) {
    if (idx == null || this.raw[at]?.[idx] == null) return "–";
    const format = this.options.format;
    const low = this.bounds?.low[at][idx], high = this.bounds?.high[at][idx], n = this.certainty.n?.[at][idx];
    const notes = [low == null || high == null ? "" : `${format(low)} to ${format(high)}`, n == null ? "" : `n ${n.toLocaleString("en-US")}`].filter(Boolean);
    return format(this.raw[at][idx]) + (notes.length ? ` (${notes.join(", ")})` : "");
  }

  // While the pointer is not on the chart, the legend shows the newest values.
  showLast() {
    if (this.plot && this.plot.cursor.idx == null) this.plot.setLegend({ idx: this.plot.data[0].length - 1 });
  }

  uplotOptions(names, data) {
    const { kind, time, height, range, whole, colours = {}, widths = {} } = this.options;
    const xFormat = (x) => this.options.xFormat(x); // Labels of bins change with the data.
    const axis = { stroke: css("--ink-2"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const few = data[0].length < 2;
    const sure = Boolean(this.certainty.n); // Lines with a number of observations are drawn by drawLines.
    const series = names.map((name, at) => {
      const colour = css(colours[name] ?? `--c${at % COLOURS}`);
      const bars = kind === "bars";
      return {
        label: this.labelOf(name),
        stroke: bars ? css("--card") : colour,
        fill: bars ? colour : undefined,
        width: bars ? 1 : widths[name] ?? 2,
        spanGaps: true,
        paths: bars
          ? uPlot.paths.bars({ size: [0.8, 28], radius: 0 })
          : kind === "steps" ? uPlot.paths.stepped({ align: 1 }) : sure ? () => null : undefined,
        points: { show: bars || sure ? false : few || (this.options.dots ?? []).includes(name), size: 7, fill: colour, stroke: colour },
        value: (_, __, ___, idx) => this.valueText(at, idx),
      };
    });
    return {
      width: this.box.clientWidth || 600,
      height,
      series: [{ label: time ? "Time, " + ZONE : this.options.xLabel ?? "Version", value: (_, x) => (x == null ? "–" : time ? clock(x * 1000) : xFormat(x)) }, ...series],
      axes: [
        time
          ? { ...axis, size: 34, space: 70, values: (_, ticks, __, ___, step) => ticks.map((x) => clock(x * 1000).slice(0, step < 60 ? 8 : 5)) }
          : { ...axis, size: 34, incrs: WHOLE, values: (_, ticks) => ticks.map(xFormat) },
        { ...axis, size: 52, ...(whole ? { incrs: WHOLE } : {}), values: (_, ticks) => ticks.map(this.options.yFormat ?? compact.format) },
      ],
      scales: {
        x: { time: Boolean(time), ...(kind === "bars" || few ? { range: (_, low, high) => [low - 0.6, high + 0.6] } : {}) },
        y: { range: range ?? ((_, low, high) => this.rangeOf(low, high)) },
      },
      cursor: { y: false, points: { size: 8 } },
      legend: { live: true, markers: { fill: (u, at) => at ? css(colours[names[at - 1]] ?? `--c${(at - 1) % COLOURS}`) : "transparent", width: 0 } },
      hooks: { drawAxes: [(u) => this.drawBands(u)], draw: [(u) => this.drawLines(u), (u) => this.drawBounds(u)], setCursor: [() => queueMicrotask(() => this.showLast())] },
    };
  }

  // The y axis begins or ends at 0 and holds the intervals of all values that rest on enough observations.
  rangeOf(low, high) {
    const { n } = this.certainty;
    for (const [bounds, pick] of [[this.certainty.low, Math.min], [this.certainty.high, Math.max]]) {
      bounds?.forEach((values, at) => values.forEach((value, x) => {
        if (value == null || (n && n[at][x] < FEW)) return;
        if (pick === Math.min) low = Math.min(low, value);
        else high = Math.max(high, value);
      }));
    }
    return [Math.min(0, low) * 1.08, high > 0 ? high * 1.08 : low < 0 ? 0 : 1];
  }

  colourOf(at) {
    return css(this.options.colours?.[this.names[at]] ?? `--c${at % COLOURS}`);
  }

  clip(u) {
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    u.ctx.clip();
  }

  // Draws the intervals, as bands between neighbours and as a bar at a single value.
  drawBands(u) {
    const { low, high } = this.certainty;
    if (!low || !high) return;
    const xs = u.data[0];
    this.clip(u);
    this.names.forEach((name, at) => {
      if (!u.series[at + 1].show) return;
      const known = xs.map((_, x) => x).filter((x) => low[at][x] != null && high[at][x] != null);
      u.ctx.fillStyle = this.colourOf(at);
      u.ctx.strokeStyle = this.colourOf(at);
      u.ctx.globalAlpha = this.names.length > 4 ? 0.1 : 0.18;
      if (known.length < 3) {
        u.ctx.globalAlpha = 0.6;
        u.ctx.lineWidth = 2 * devicePixelRatio;
        for (const x of known) {
          const left = u.valToPos(xs[x], "x", true);
          u.ctx.beginPath();
          u.ctx.moveTo(left, u.valToPos(low[at][x], "y", true));
          u.ctx.lineTo(left, u.valToPos(high[at][x], "y", true));
          u.ctx.stroke();
        }
        return;
      }
      u.ctx.beginPath();
      known.forEach((x, first) => u.ctx[first ? "lineTo" : "moveTo"](u.valToPos(xs[x], "x", true), u.valToPos(high[at][x], "y", true)));
      known.reverse().forEach((x) => u.ctx.lineTo(u.valToPos(xs[x], "x", true), u.valToPos(low[at][x], "y", true)));
      u.ctx.fill();
    });
    u.ctx.restore();
  }

  // Draws lines whose values rest on a number of observations: those of fewer than FEW are faded.
  drawLines(u) {
    const { n } = this.certainty;
    if (!n || this.options.kind === "bars" || this.options.kind === "steps") return;
    const xs = u.data[0];
    this.clip(u);
    u.ctx.lineJoin = "round";
    this.names.forEach((name, at) => {
      if (!u.series[at + 1].show) return;
      const values = u.data[at + 1];
      const known = xs.map((_, x) => x).filter((x) => values[x] != null);
      const place = (x, column = values) => [u.valToPos(xs[x], "x", true), u.valToPos(column[x], "y", true)];
      const faded = (x) => this.sizes[at][x] != null && this.sizes[at][x] < FEW;
      u.ctx.strokeStyle = u.ctx.fillStyle = this.colourOf(at);
      u.ctx.lineWidth = (this.options.widths?.[name] ?? 2) * devicePixelRatio;
      for (let each = 1; each < known.length; each++) {
        u.ctx.globalAlpha = faded(known[each - 1]) || faded(known[each]) ? 0.35 : 1;
        u.ctx.beginPath();
        u.ctx.moveTo(...place(known[each - 1]));
        u.ctx.lineTo(...place(known[each]));
        u.ctx.stroke();
      }
      // Points: of the raw values under a smoothed line, and where lines alone would show too little.
      const shown = this.points ? this.points[at] : known.length < 3 || (this.options.dots ?? []).includes(name) || known.length <= 80 ? values : null;
      if (!shown) return;
      for (const x of known) {
        if (shown[x] == null) continue;
        u.ctx.globalAlpha = faded(x) || this.points ? 0.35 : 1;
        u.ctx.beginPath();
        u.ctx.arc(...place(x, shown), (known.length < 3 ? 3.5 : 2.5) * devicePixelRatio, 0, 2 * Math.PI);
        u.ctx.fill();
      }
    });
    u.ctx.restore();
  }

  // Draws dashed lines at the warning thresholds that are in the visible range.
  drawBounds(u) {
    const { min, max } = u.scales.y;
    u.ctx.save();
    u.ctx.strokeStyle = css("--warn");
    u.ctx.setLineDash([6, 5]);
    for (const bound of this.options.bounds ?? []) {
      if (bound < min || bound > max) continue;
      const y = Math.round(u.valToPos(bound, "y", true));
      u.ctx.beginPath();
      u.ctx.moveTo(u.bbox.left, y);
      u.ctx.lineTo(u.bbox.left + u.bbox.width, y);
      u.ctx.stroke();
    }
    u.ctx.restore();
  }
}

// Returns for each series the sum of it and all later ones: the first series is at the top of the bar, the last at the
// bottom.
function cumulate(arrays) {
  const sums = arrays.map(() => []);
  for (let x = 0; x < (arrays[0]?.length ?? 0); x++) {
    let sum = 0;
    for (let at = arrays.length - 1; at >= 0; at--) {
      sum += arrays[at][x] ?? 0;
      sums[at][x] = sum;
    }
  }
  return sums;
}

// A date and a time of this browser's time zone, which is named beside it.
const moment = (ms) => new Date(ms).toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "medium" });
