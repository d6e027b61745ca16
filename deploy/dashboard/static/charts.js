// Charts with uPlot: lines and stacked bars, updated in place as long as their series stay the same.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = 8;
const WHOLE = [1, 2, 5].flatMap((first) => Array.from({ length: 8 }, (_, zeros) => first * 10 ** zeros)).sort((a, b) => a - b);
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

// Returns long rows (x, series, y) as uPlot's aligned arrays; series in `order` come last, in this order, after the
// others, which are sorted by name.
function pivot(rows, xKey, seriesKey, yKey, order = []) {
  const xs = [...new Set(rows.map((row) => row[xKey]))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, at) => [x, at]));
  const found = [...new Set(rows.map((row) => row[seriesKey]))].sort();
  const names = [...found.filter((name) => !order.includes(name)), ...order.filter((name) => found.includes(name))];
  const arrays = new Map(names.map((name) => [name, new Array(xs.length).fill(null)]));
  for (const row of rows) arrays.get(row[seriesKey])[place.get(row[xKey])] = row[yKey];
  return { xs, names, arrays: names.map((name) => arrays.get(name)) };
}

class Chart {
  // options: kind ("lines" | "steps" | "bars"), format of values, xFormat and yFormat of ticks, xLabel, time, height,
  // range of y, whole (no fractions on y), bounds (values with a dashed line), and by series: labels, colours, widths,
  // dots (names of the series with points)
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

  draw(xs, names, arrays) {
    const stacked = this.options.kind === "bars";
    this.raw = arrays;
    const data = [xs, ...(stacked ? cumulate(arrays) : arrays)];
    const signature = JSON.stringify([names, matchMedia("(prefers-color-scheme: dark)").matches]);
    const drawn = JSON.stringify(data);
    if (this.plot && signature === this.signature) {
      // A new snapshot usually changes few charts: comparing the data is cheaper than repainting all of them.
      if (drawn !== this.drawn) this.plot.setData(data);
    } else {
      this.drop();
      this.box.replaceChildren();
      this.plot = new uPlot(this.uplotOptions(names, data), data, this.box);
      this.signature = signature;
    }
    this.drawn = drawn;
    this.showLast();
  }

  // While the pointer is not on the chart, the legend shows the newest values.
  showLast() {
    if (this.plot && this.plot.cursor.idx == null) this.plot.setLegend({ idx: this.plot.data[0].length - 1 });
  }

  uplotOptions(names, data) {
    const { kind, format, xFormat, time, height, range, whole, labels = {}, colours = {}, widths = {} } = this.options;
    const axis = { stroke: css("--ink-2"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const few = data[0].length < 2;
    const series = names.map((name, at) => {
      const colour = css(colours[name] ?? `--c${at % COLOURS}`);
      const bars = kind === "bars";
      return {
        label: labels[name] ?? name.replaceAll("_", " "),
        stroke: bars ? css("--card") : colour,
        fill: bars ? colour : undefined,
        width: bars ? 1 : widths[name] ?? 2,
        spanGaps: true,
        paths: bars
          ? uPlot.paths.bars({ size: [0.8, 28], radius: 0 })
          : kind === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: bars ? false : few || (this.options.dots ?? []).includes(name), size: 7, fill: colour, stroke: colour },
        value: (_, __, ___, idx) => format(idx == null ? null : this.raw[at][idx]),
      };
    });
    return {
      width: this.box.clientWidth || 600,
      height,
      series: [{ label: time ? "Time" : this.options.xLabel ?? "Version", value: (_, x) => (x == null ? "–" : time ? clock(x * 1000) : xFormat(x)) }, ...series],
      axes: [
        time
          ? { ...axis, size: 34, space: 70, values: (_, ticks, __, ___, step) => ticks.map((x) => clock(x * 1000).slice(0, step < 60 ? 8 : 5)) }
          : { ...axis, size: 34, incrs: WHOLE, values: (_, ticks) => ticks.map(xFormat) },
        { ...axis, size: 52, ...(whole ? { incrs: WHOLE } : {}), values: (_, ticks) => ticks.map(this.options.yFormat ?? compact.format) },
      ],
      scales: {
        x: { time: Boolean(time), ...(kind === "bars" || few ? { range: (_, low, high) => [low - 0.6, high + 0.6] } : {}) },
        y: { range: range ?? ((_, low, high) => [Math.min(0, low), high > 0 ? high * 1.08 : 1]) },
      },
      cursor: { y: false, points: { size: 8 } },
      legend: { live: true, markers: { fill: (u, at) => at ? css(colours[names[at - 1]] ?? `--c${(at - 1) % COLOURS}`) : "transparent", width: 0 } },
      hooks: { draw: [(u) => this.drawBounds(u)], setCursor: [() => queueMicrotask(() => this.showLast())] },
    };
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

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
