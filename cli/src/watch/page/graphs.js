"use strict";
// The graphs over time: which figures, their legends, what a pointer or a key shows, and the same
// as text for who does not see them.

/** A figure: its name, where it comes from, and how it is written. */
function figure(name, of, tone, more) {
  return { name, of, tone, dash: "solid", ...more };
}
const mib = value => (known(value) ? value * 1e6 : null);
const missRatio = s => (known(s.hit_ratio) ? (1 - s.hit_ratio) * 100 : null);
const percentage = v => (known(v) ? short(v) + " %" : "–");

// `least`: the smallest upper end of an axis, so that noise is not drawn as a mountain.
const CHARTS = [
  {
    title: "Load",
    left: {
      unit: short,
      least: 10,
      series: [figure("queries/s", s => s.qps, "qps", { fill: 0.1 })],
    },
    right: {
      unit: milliseconds,
      least: 0.1,
      series: [figure("p95", s => s.p95_ms, "p95", { dash: "dashed" })],
    },
  },
  {
    title: "Pool misses",
    left: { unit: percentage, least: 0.01, series: [figure("miss ratio", missRatio, "hit")] },
    right: {
      unit: short,
      least: 1,
      series: [figure("reads from disk/s", s => s.reads_per_s, "write", { dash: "dashed" })],
    },
  },
  {
    title: "Disk and swap",
    left: {
      unit: bytesPerSecond,
      least: 65536,
      binary: true,
      series: [
        figure("read", s => mib(s.disk_read_mb_s), "read"),
        figure("written", s => mib(s.disk_write_mb_s), "write", { dash: "dashed" }),
        figure("swap", s => mib(s.swap_mb_s), "swap", { dash: "dotted" }),
      ],
    },
  },
  {
    title: "Pool size",
    marks: true,
    left: {
      unit: bytes,
      least: MIB,
      binary: true,
      cap: true,
      series: [
        figure(
          "used, with compressed pages",
          s => (s.compressed_bytes ? s.data_bytes + s.compressed_bytes : null),
          "tier",
          { fill: 0.3 },
        ),
        figure("used", s => s.data_bytes, "data", { fill: 0.3 }),
        figure("size", s => s.pool_bytes, "pool"),
        figure("available maximum", s => s.target_bytes, "fits", { dash: "dashed" }),
      ],
    },
  },
  {
    title: "Dirty pages and redo",
    left: {
      unit: bytes,
      least: MIB,
      binary: true,
      series: [
        figure("dirty pages", s => s.dirty_bytes, "fits", { fill: 0.15 }),
        figure("checkpoint age", s => s.checkpoint_age_bytes, "qps", { dash: "dashed" }),
        figure("age at which writers wait", s => s.checkpoint_age_max_bytes, "swap", {
          dash: "dotted",
        }),
      ],
    },
  },
  {
    title: "Threads and row locks",
    left: {
      unit: short,
      least: 4,
      series: [figure("running threads", s => s.threads_running, "qps", { fill: 0.1 })],
    },
    right: {
      unit: short,
      least: 1,
      series: [
        figure("row lock waits/s", s => s.row_lock_waits_per_s, "p95", { dash: "dashed" }),
        figure("deadlocks/s", s => s.deadlocks_per_s, "swap", { dash: "dotted" }),
      ],
    },
  },
  {
    title: "History list",
    left: {
      unit: short,
      least: 100,
      series: [figure("transactions not purged", s => s.history_list_length, "hit", { fill: 0.1 })],
    },
  },
  {
    title: "Temporary tables, replication",
    left: {
      unit: short,
      least: 1,
      series: [figure("temporary tables on disk/s", s => s.tmp_disk_tables_per_s, "read")],
    },
    right: {
      unit: seconds,
      least: 1,
      series: [figure("replication lag", s => s.replication_lag_s, "p95", { dash: "dashed" })],
    },
  },
];
const sides = chart => [chart.left, chart.right].filter(known);
const all = chart => sides(chart).flatMap(side => side.series);

const SPANS = [
  ["2 min", 120],
  ["5 min", 300],
  ["15 min", 900],
];
// Longer spans come from the file of --history.
const isPast = length => length > 900;
const LONG_SPANS = [
  ["1 h", 3600],
  ["6 h", 21600],
  ["1 day", 86400],
  ["7 days", 604800],
  ["30 days", 2592000],
];
let span = 300;
// What is pointed at: a chart, and a time.
let hover = null;
// Samples of days: of which span, how long each is, and when they were had.
let past = { span: 0, step_s: 1, samples: [], at: 0 };

/** Samples in the time that is shown, and the time. */
function shown() {
  if (isPast(span)) {
    const end = serverNow(),
      start = end - span * 1000;
    return { start, end, samples: past.span === span ? past.samples : [], gap: past.step_s * 2500 };
  }
  // A server that is silent has no samples, and the graph goes on all the same.
  const silence = isSilent ? performance.now() - heardAt : 0;
  const end = samples.length ? samples[samples.length - 1].at_ms + silence : serverNow();
  const start = end - span * 1000;
  return { start, end, samples: samples.filter(s => s.at_ms >= start - 1500), gap: 5000 };
}

for (const chart of CHARTS) {
  const box = get("graphs").appendChild(element("figure"));
  const legend = box.appendChild(element("figcaption"));
  legend.append(element("b", chart.title));
  for (const side of sides(chart))
    for (const series of side.series) {
      series.unit = side.unit;
      series.label = legend.appendChild(element("span"));
      const swatch = series.label.appendChild(element("i", null, "swatch " + series.dash));
      swatch.style.setProperty("--tone", `var(--${series.tone})`);
      series.text = series.label.appendChild(element("span", series.name));
    }
  chart.box = box;
  chart.canvas = box.appendChild(element("canvas"));
  chart.canvas.tabIndex = 0;
  chart.canvas.setAttribute("role", "img");
  chart.canvas.setAttribute("aria-label", chart.title);
  chart.canvas.addEventListener("pointermove", event => point(chart, event.offsetX));
  chart.canvas.addEventListener("pointerleave", () => point(null));
  chart.canvas.addEventListener("blur", () => point(null));
  chart.canvas.addEventListener("keydown", event => key(chart, event));
}

function drawGraphs() {
  const view = shown();
  for (const chart of CHARTS) {
    // A figure that this server has not has no line and no place in the legend.
    for (const series of all(chart))
      series.label.hidden = !view.samples.some(s => known(series.of(s)));
    chart.box.hidden = view.samples.length > 0 && all(chart).every(series => series.label.hidden);
    if (!chart.box.hidden) drawChart(chart, view);
  }
  showTip(view);
  if (get("figures").open) showFigures(view);
}

function drawChart(chart, view) {
  const { draw, width, height } = surface(chart.canvas);
  const area = { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM };
  const x = ms =>
    area.left + ((ms - view.start) / (view.end - view.start)) * (area.right - area.left);
  chart.view = { area, x };
  // The size that fits may be a hundred times the pool's. The legend then gives it, and the axis
  // is drawn for the pool.
  const cap = chart.left.cap ? 4 * Math.max(1, ...view.samples.map(s => s.pool_bytes)) : 0;
  for (const side of sides(chart)) {
    const values = side.series
      .flatMap(one => view.samples.map(one.of))
      .filter(v => known(v) && !(cap && v > cap));
    side.max = ceiling(Math.max(side.least, ...values) * 1.04, side.binary);
  }
  const isRight = chart.right && chart.right.series.some(series => !series.label.hidden);
  axes(draw, area, chart.left, isRight ? chart.right : null);
  for (const side of sides(chart))
    for (const series of side.series) {
      line(draw, view.samples, series, { x, area, max: side.max, gap: view.gap, cap });
      const last = view.samples.length ? series.of(view.samples[view.samples.length - 1]) : null;
      const above = cap && known(last) && last > cap;
      series.text.textContent = above ? `${series.name}: ${series.unit(last)} ↑` : series.name;
    }
  times(draw, area, view.start, view.end, x);
  if (chart.marks) for (const mark of marks(view)) flag(draw, x(mark.at_ms), area);
  if (hover && view.samples.length) upright(draw, x(near(view, hover.at_ms).at_ms), area, "soft");
}

/** Decisions of the time that is shown. */
function marks(view) {
  const found = decisions.map(decision => ({
    at_ms: new Date(decision.at).getTime(),
    text: decision.text,
  }));
  return found.filter(mark => mark.at_ms >= view.start && mark.at_ms <= view.end);
}

const near = (view, at_ms) =>
  view.samples.reduce((a, b) => (Math.abs(b.at_ms - at_ms) < Math.abs(a.at_ms - at_ms) ? b : a));

function point(chart, at) {
  if (!chart && !hover) return;
  hover = null;
  if (chart && chart.view) {
    const view = shown(),
      { left, right } = chart.view.area;
    const part = Math.min(1, Math.max(0, (at - left) / (right - left)));
    hover = { chart, at_ms: view.start + part * (view.end - view.start) };
  }
  drawGraphs();
}

function key(chart, event) {
  const view = shown(),
    last = view.samples.length - 1;
  if (event.ctrlKey || event.altKey || event.metaKey || last < 0) return;
  const now = hover ? view.samples.indexOf(near(view, hover.at_ms)) : last + 1;
  const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
  if (event.key === "Escape") hover = null;
  else if (known(next))
    hover = { chart, at_ms: view.samples[Math.min(last, Math.max(0, next))].at_ms };
  else return;
  event.preventDefault();
  drawGraphs();
}

function showTip(view) {
  const tip = get("tip");
  tip.hidden = !hover || !view.samples.length || hover.chart.box.hidden;
  if (tip.hidden) return;
  const { chart } = hover,
    sample = near(view, hover.at_ms);
  tip.replaceChildren(
    element(
      "b",
      isPast(span) ? `${day(sample.at_ms)} ${shortClock(sample.at_ms)}` : clock(sample.at_ms),
    ),
  );
  for (const series of all(chart).filter(series => !series.label.hidden)) {
    const row = element("div"),
      label = element("span"),
      swatch = element("i", null, "swatch " + series.dash);
    swatch.style.setProperty("--tone", `var(--${series.tone})`);
    label.append(swatch, series.name);
    row.append(label, element("span", series.unit(series.of(sample))));
    tip.append(row);
  }
  const close = chart.marks
    ? marks(view).filter(mark => Math.abs(mark.at_ms - sample.at_ms) < view.gap)
    : [];
  for (const mark of close.slice(0, 3)) tip.append(element("p", mark.text, "note"));
  const box = chart.canvas.getBoundingClientRect(),
    at = chart.view.x(sample.at_ms);
  const left = at > box.width / 2 ? at - tip.offsetWidth - 10 : at + 10;
  tip.style.left =
    Math.max(8, Math.min(box.left + left, innerWidth - tip.offsetWidth - 8)) + scrollX + "px";
  tip.style.top = box.top + scrollY + 4 + "px";
}

/** Now, least, mean, most of a series. */
function summary(view, series) {
  const values = view.samples.map(series.of).filter(known);
  if (!values.length) return null;
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  return [values[values.length - 1], Math.min(...values), mean, Math.max(...values)].map(
    series.unit,
  );
}

function showFigures(view) {
  const rows = CHARTS.flatMap(all)
    .map(series => [series.name, summary(view, series)])
    .filter(([, found]) => found);
  get("figures")
    .querySelector("tbody")
    .replaceChildren(
      ...rows.map(([name, found]) => {
        const row = element("tr"),
          head = element("th", name);
        head.scope = "row";
        row.append(head, ...found.map(text => element("td", text, "n")));
        return row;
      }),
    );
}

/** The graphs in words, for who does not see them: seldom, since they are read aloud. */
function describeGraphs() {
  const view = shown();
  const name = [...SPANS, ...LONG_SPANS].find(([, s]) => s === span)[0];
  for (const chart of CHARTS) {
    const found = all(chart)
      .map(series => [series.name, summary(view, series)])
      .filter(([, found]) => found);
    const words = found.map(
      ([name, [now, least, , most]]) => `${name} ${now}, ${least} to ${most}`,
    );
    const text = `${chart.title}, last ${name}: ${words.join("; ") || "nothing yet"}. Arrow keys show single moments.`;
    if (chart.canvas.getAttribute("aria-label") !== text)
      chart.canvas.setAttribute("aria-label", text);
  }
}

/** The buttons for the time that is shown: days only where they are kept. */
function showSpans(keepsHistory) {
  const wanted = keepsHistory ? [...SPANS, ...LONG_SPANS] : SPANS;
  if (get("spans").children.length === wanted.length) return;
  get("spans").replaceChildren(
    ...wanted.map(([name, length]) => {
      const button = element("button", name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(length === span));
      button.addEventListener("click", () => choose(length, button));
      return button;
    }),
  );
}
function choose(length, button) {
  span = length;
  for (const other of get("spans").children)
    other.setAttribute("aria-pressed", String(other === button));
  hover = null;
  drawGraphs();
  describeGraphs();
  readPast();
}

/** Samples of days, at most twice a minute. */
async function readPast() {
  if (!isPast(span) || (past.span === span && performance.now() - past.at < 30000)) return;
  const wanted = span;
  const answer = await fetch(address("/api/history", { span: wanted }));
  if (!answer.ok || wanted !== span) return;
  const found = await answer.json();
  past = { ...found, span: wanted, at: performance.now() };
  if (found.error) complain(found.error);
  drawGraphs();
  describeGraphs();
}

get("figures").addEventListener("toggle", drawGraphs);
