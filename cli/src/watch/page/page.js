"use strict";
// The live page. All text from the server goes into the document as text (textContent), never as markup: a table may be
// named anything. Nothing is loaded from elsewhere.

const MIB = 1048576;
const get = id => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const tone = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

let samples = [], about = null, curve = { points: [] }, setting = {}, span = 300, hover = null;
// The size that the slider shows and that is not set yet, bytes; null when it shows the pool's.
let picked = null, effect = null;
// When the newest sample came, on this page's own clock, and whether the server answers.
let heardAt = 0, isSilent = false;

// --- numbers for people ---------------------------------------------------------------------------------------
const known = value => value !== null && value !== undefined;
function short(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toFixed(1) + "M";
  if (size >= 1e4) return (value / 1e3).toFixed(1) + "K";
  if (size >= 100) return value.toFixed(0);
  return size >= 10 ? value.toFixed(1) : value.toFixed(2);
}
function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit++; }
  return (value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1)) + " " + units[unit];
}
const percent = value => known(value) ? (value * 100).toFixed(value > 0.99 && value < 1 ? 2 : 1) + " %" : "–";
const clock = ms => new Date(ms).toLocaleTimeString([], { hour12: false });
/** A time of a log, which is in UTC, on this browser's clock as the graph's times are. */
function local(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : at.toLocaleDateString() + " " + clock(at);
}

function element(tag, text, cls) {
  const made = document.createElement(tag);
  if (known(text)) made.textContent = text;
  if (cls) made.className = cls;
  return made;
}

// --- the graph ---------------------------------------------------------------------------------------------------
const BANDS = [
  { share: 0.40, left: [["qps", "queries/s", s => s.qps, "qps"]], leftUnit: short,
    right: [["p95", "p95", s => s.p95_ms, "p95"]], rightUnit: v => short(v) + " ms" },
  { share: 0.34, left: [["read", "disk read", s => s.disk_read_mb_s, "read"], ["write", "disk write", s => s.disk_write_mb_s, "write"],
                        ["swap", "swap", s => s.swap_mb_s, "swap"]], leftUnit: v => short(v) + " MB/s",
    right: [["hit", "miss ratio", s => known(s.hit_ratio) ? (1 - s.hit_ratio) * 100 : null, "hit"]], rightUnit: v => short(v) + " %" },
  { share: 0.26, left: [["tier", "used, with compressed pages", s => s.compressed_bytes ? s.data_bytes + s.compressed_bytes : null, "tier"],
                        ["data", "used", s => s.data_bytes, "data"], ["pool", "pool size", s => s.pool_bytes, "pool"],
                        ["fits", "available maximum", s => s.target_bytes, "fits"]], leftUnit: bytes, binary: true, cap: true },
];

function canvasOf(id) {
  const canvas = get(id), scale = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const draw = canvas.getContext("2d");
  draw.setTransform(scale, 0, 0, scale, 0, 0);
  draw.clearRect(0, 0, width, height);
  draw.font = "11px system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif";
  return { draw, width, height };
}

/** The next round number above `value`: 1, 2, 2.5, 5 times a power of ten, or of two for bytes. */
function ceiling(value, binary) {
  if (!(value > 0)) return 1;
  const base = binary ? 2 ** Math.floor(Math.log2(value)) : 10 ** Math.floor(Math.log10(value));
  return base * (binary ? [1, 1.25, 1.5, 2] : [1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10]).find(step => step * base >= value);
}

const LEFT = 66, RIGHT = 58, TOP = 6, GAP = 30, BOTTOM = 18;

function drawGraph() {
  const { draw, width, height } = canvasOf("graph");
  // A server that is silent has no samples, and the graph goes on all the same.
  const silence = isSilent ? performance.now() - heardAt : 0;
  const end = samples.length ? samples[samples.length - 1].at_ms + silence : Date.now();
  const start = end - span * 1000;
  const shown = samples.filter(s => s.at_ms >= start - 1500);
  const x = ms => LEFT + (ms - start) / (end - start) * (width - LEFT - RIGHT);
  const free = height - TOP - BOTTOM - GAP * BANDS.length;
  let top = TOP;
  for (const band of BANDS) {
    const tall = free * band.share, bottom = top + GAP - 12 + tall;
    const area = { top: top + GAP - 12, bottom };
    const highest = (series, cap) => Math.max(0, ...shown.flatMap(s => series.map(one => one[2](s)).filter(v => known(v) && !(cap && v > cap))));
    // What fits may be a hundred times the pool: then it is told in the legend, and doesn't press the pool flat.
    const cap = band.cap ? 4 * Math.max(1, ...shown.map(s => s.pool_bytes)) : 0;
    const leftMax = ceiling(highest(band.left, cap) * 1.05, band.binary);
    legend(draw, band, top + 9, width, shown[shown.length - 1], cap);
    grid(draw, area, leftMax, band.leftUnit, width);
    for (const series of band.left) line(draw, shown, series, x, area, leftMax, band, cap);
    if (band.right) {
      const rightMax = ceiling(highest(band.right) * 1.05);
      draw.textAlign = "left";
      draw.fillStyle = tone(band.right[0][3]);
      draw.fillText(band.rightUnit(rightMax), width - RIGHT + 6, area.top + 4);
      draw.fillText(band.rightUnit(0), width - RIGHT + 6, area.bottom);
      for (const series of band.right) line(draw, shown, series, x, area, rightMax, band);
    }
    top = bottom + 12;
  }
  times(draw, start, end, x, height);
  if (effect && effect.at >= start) mark(draw, x(effect.at), height, "pool set", tone("accent"));
  showTip(draw, shown, x, width, height);
}

function legend(draw, band, y, width, last, cap) {
  draw.textAlign = "left";
  let at = LEFT;
  for (const [, label, value, color] of band.left) {
    const above = cap && last && known(value(last)) && value(last) > cap;
    const name = above ? `${label}: ${band.leftUnit(value(last))} ↑` : label;
    draw.fillStyle = tone(color);
    draw.fillRect(at, y - 7, 9, 9);
    draw.fillStyle = tone("soft");
    draw.fillText(name, at + 13, y + 1);
    at += draw.measureText(name).width + 30;
  }
  let right = width - RIGHT;
  const wide = (band.right || []).reduce((sum, one) => sum + draw.measureText(one[1]).width + 20, 0);
  // On a narrow screen it goes below the other one.
  if (right - wide < at) y += 13;
  for (const [, name, , color] of band.right || []) {
    right -= draw.measureText(name).width;
    draw.fillStyle = tone("soft");
    draw.fillText(name, right, y + 1);
    draw.fillStyle = tone(color);
    draw.fillRect(right - 13, y - 7, 9, 9);
  }
}

function grid(draw, area, max, unit, width) {
  draw.textAlign = "right";
  draw.lineWidth = 1;
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(area.bottom - part * (area.bottom - area.top)) + 0.5;
    draw.strokeStyle = tone("grid");
    draw.beginPath(); draw.moveTo(LEFT, y); draw.lineTo(width - RIGHT, y); draw.stroke();
    draw.fillStyle = tone("soft");
    draw.fillText(unit(max * part), LEFT - 7, y + 4);
  }
}

function line(draw, shown, [key, , value, color], x, area, max, band, cap) {
  draw.strokeStyle = draw.fillStyle = tone(color);
  draw.lineWidth = 1.6;
  draw.setLineDash(key === "fits" ? [5, 4] : []);
  // A gap of several seconds is a gap, not a slope: each run of samples is a line, and an area, by itself.
  const runs = [];
  let last = null;
  for (const sample of shown) {
    const v = value(sample);
    if (!known(v) || (cap && v > cap)) { last = null; continue; }
    if (last === null || sample.at_ms - last > 5000) runs.push([]);
    runs[runs.length - 1].push([Math.max(LEFT, x(sample.at_ms)), area.bottom - Math.min(1, v / max) * (area.bottom - area.top)]);
    last = sample.at_ms;
  }
  for (const run of runs) {
    draw.globalAlpha = 1;
    draw.beginPath();
    run.forEach(([px, py], i) => i ? draw.lineTo(px, py) : draw.moveTo(px, py));
    draw.stroke();
    if (key !== "data" && key !== "tier" && key !== "qps") continue;
    draw.lineTo(run[run.length - 1][0], area.bottom); draw.lineTo(run[0][0], area.bottom); draw.closePath();
    draw.globalAlpha = key === "qps" ? 0.1 : 0.35; draw.fill(); draw.globalAlpha = 1;
  }
  draw.setLineDash([]);
}

function times(draw, start, end, x, height) {
  // As close as the labels have room.
  const room = (x(start + 1000) - x(start)) / 70;
  const step = [20e3, 60e3, 180e3, 300e3].find(step => step / 1000 * room >= 1) || 600e3;
  draw.textAlign = "center";
  draw.fillStyle = tone("soft");
  for (let at = Math.ceil(start / step) * step; at <= end; at += step) {
    if (x(at) > LEFT + 20) draw.fillText(clock(at), x(at), height - 3);
  }
}

function mark(draw, at, height, text, color) {
  draw.strokeStyle = draw.fillStyle = color;
  draw.lineWidth = 1;
  draw.setLineDash([3, 3]);
  draw.beginPath(); draw.moveTo(at, TOP + 14); draw.lineTo(at, height - BOTTOM); draw.stroke();
  draw.setLineDash([]);
  const isAtEnd = at + 4 + draw.measureText(text).width > draw.canvas.clientWidth - RIGHT;
  draw.textAlign = isAtEnd ? "right" : "left";
  draw.fillText(text, at + (isAtEnd ? -4 : 4), TOP + 26);
}

function showTip(draw, shown, x, width, height) {
  const tip = get("tip");
  tip.hidden = hover === null || !shown.length;
  if (tip.hidden) return;
  const near = shown.reduce((a, b) => Math.abs(x(b.at_ms) - hover) < Math.abs(x(a.at_ms) - hover) ? b : a);
  const at = x(near.at_ms);
  draw.strokeStyle = tone("soft");
  draw.beginPath(); draw.moveTo(at, TOP + 14); draw.lineTo(at, height - BOTTOM); draw.stroke();
  tip.replaceChildren(element("b", clock(near.at_ms)));
  for (const band of BANDS) {
    for (const [side, unit] of [[band.left, band.leftUnit], [band.right || [], band.rightUnit]]) {
      for (const [, name, value, color] of side) {
        const row = element("div"), label = element("span", name), dot = element("i");
        dot.style.setProperty("--tone", `var(--${color})`);
        label.prepend(dot);
        const v = value(near);
        row.append(label, element("span", known(v) ? unit(v) : "–"));
        tip.append(row);
      }
    }
  }
  tip.style.left = (at > width / 2 ? at - tip.offsetWidth - 12 : at + 12) + "px";
}

// --- the curve, and what it predicts ------------------------------------------------------------------------------
/** Hit ratio at a size, between the points of the curve, straight in log(size) and log(miss); null beyond what is known. */
function predict(size) {
  const points = curve.points.filter(p => p.size_bytes > 0);
  if (points.length < 2) return null;
  const last = points.length - 1;
  if (size < points[0].size_bytes / 2 || size > points[last].size_bytes * 2) return null;
  let right = points.findIndex(p => p.size_bytes >= size);
  right = right < 0 ? last : Math.max(1, right);
  const [a, b] = [points[right - 1], points[right]];
  const part = (Math.log(size) - Math.log(a.size_bytes)) / (Math.log(b.size_bytes) - Math.log(a.size_bytes));
  const between = (from, to) => Math.exp(Math.log(Math.max(from, 1e-6)) * (1 - part) + Math.log(Math.max(to, 1e-6)) * part);
  return { hit: Math.max(0, 1 - Math.min(1, between(1 - a.hit_ratio, 1 - b.hit_ratio))), reads: between(a.reads_per_s, b.reads_per_s) };
}

function drawCurve() {
  const { draw, width, height } = canvasOf("curve");
  const last = samples[samples.length - 1];
  const points = curve.points.filter(p => p.size_bytes > 0);
  get("curvekind").textContent = curve.predicted ? "predicted by the engine" : "measured at the sizes that the pool has had";
  get("curvenote").hidden = !curve.note;
  get("curvenote").textContent = curve.note || "";
  const chosen = chosenSize();
  const sizes = points.map(p => p.size_bytes).concat(last ? [last.pool_bytes] : [], known(picked) ? [chosen] : []).filter(s => s > 0);
  if (!sizes.length) return;
  const low = Math.min(...sizes) / 1.3, high = Math.max(...sizes) * 1.3;
  const area = { left: 52, right: width - 12, top: 22, bottom: height - 22 };
  const x = size => area.left + Math.log(size / low) / Math.log(high / low) * (area.right - area.left);
  const misses = points.map(p => 1 - p.hit_ratio).concat(last && known(last.hit_ratio) ? [1 - last.hit_ratio] : []);
  const max = ceiling(Math.max(0.001, ...misses) * 105) / 100;
  const y = miss => area.bottom - miss / max * (area.bottom - area.top);
  draw.lineWidth = 1;
  for (const part of [0, 0.5, 1]) {
    draw.strokeStyle = tone("grid");
    draw.beginPath(); draw.moveTo(area.left, y(max * part)); draw.lineTo(area.right, y(max * part)); draw.stroke();
    draw.fillStyle = tone("soft"); draw.textAlign = "right";
    draw.fillText(short(max * part * 100) + " %", area.left - 6, y(max * part) + 4);
  }
  draw.textAlign = "center";
  let free = -Infinity;
  for (const size of [...new Set(points.map(p => p.size_bytes))].concat(points.length ? [] : sizes)) {
    const text = bytes(size), wide = draw.measureText(text).width / 2;
    if (x(size) - wide < free) continue;
    draw.fillText(text, x(size), height - 6);
    free = x(size) + wide + 10;
  }
  draw.strokeStyle = draw.fillStyle = tone("hit");
  draw.lineWidth = 2;
  if (points.length > 1) {
    draw.beginPath();
    points.forEach((p, i) => i ? draw.lineTo(x(p.size_bytes), y(1 - p.hit_ratio)) : draw.moveTo(x(p.size_bytes), y(1 - p.hit_ratio)));
    draw.stroke();
  }
  for (const p of points) { draw.beginPath(); draw.arc(x(p.size_bytes), y(1 - p.hit_ratio), 3.5, 0, 7); draw.fill(); }
  const upright = (size, text, color, row) => {
    draw.strokeStyle = draw.fillStyle = tone(color);
    draw.lineWidth = 1.2; draw.setLineDash([4, 3]);
    draw.beginPath(); draw.moveTo(x(size), area.top - 6); draw.lineTo(x(size), area.bottom); draw.stroke();
    draw.setLineDash([]);
    draw.textAlign = x(size) > width * 0.6 ? "right" : "left";
    draw.fillText(text, x(size) + (x(size) > width * 0.6 ? -5 : 5), area.top + row * 13);
  };
  if (last) upright(last.pool_bytes, "current: " + bytes(last.pool_bytes), "pool", 0);
  if (known(picked) && chosen > 0) upright(chosen, bytes(chosen), "fits", 1);
}

// --- the slider -------------------------------------------------------------------------------------------------
const size = get("size"), NOTCHES = 1000;
size.min = 0; size.max = NOTCHES; size.step = 1;
// The ends of the slider and its unit, bytes. In between it is logarithmic: a MiB matters in a pool of 64, not in one of 64,000.
let least = MIB, most = MIB, unit = MIB;
const sizeAt = notch => Math.max(about.least_bytes, Math.round(least * (most / least) ** (notch / NOTCHES) / unit) * unit);
const notchOf = bytes => most > least ? Math.round(Math.log(bytes / least) / Math.log(most / least) * NOTCHES) : NOTCHES;
/** What the slider says: what was picked and not set yet, else what is wanted or is. */
function chosenSize() {
  const last = samples[samples.length - 1];
  if (known(picked)) return picked;
  return setting.running && setting.wanted_bytes > 0 ? setting.wanted_bytes : last ? last.pool_bytes : 0;
}

function mean(list, value) {
  const found = list.map(value).filter(known);
  return found.length ? found.reduce((a, b) => a + b, 0) / found.length : null;
}
const figures = list => ({ qps: mean(list, s => s.qps), hit: mean(list, s => s.hit_ratio), p95: mean(list, s => s.p95_ms), reads: mean(list, s => s.reads_per_s) });

function updateSlider() {
  const last = samples[samples.length - 1];
  if (!last || !about) return;
  const now = last.pool_bytes, fits = last.target_bytes;
  if (!known(picked)) {
    unit = Math.max(1, about.unit_bytes);
    // From an eighth of today's size, but no less than the engine takes, to what fits, or to four times today's where nobody knows.
    most = Math.max(now, Math.min(known(fits) ? fits : now * 4, now * 16));
    most = Math.max(Math.floor(most / unit) * unit, now, about.least_bytes);
    least = Math.max(about.least_bytes, Math.ceil(now / 8 / unit) * unit);
    size.value = notchOf(chosenSize());
  }
  size.disabled = !token || known(about.fixed) || isSilent;
  get("confirm").hidden = !known(picked);
  get("confirmnote").textContent = known(picked) ? `${bytes(now)} → ${bytes(picked)}: nothing is set yet` : "";
  get("set").textContent = known(picked) ? `Set to ${bytes(picked)}` : "";
  size.setAttribute("aria-valuetext", bytes(chosenSize()));
  get("least").textContent = bytes(least);
  get("most").textContent = bytes(most);
  get("fits").textContent = known(fits) ? `available maximum: ${bytes(fits)}` : "";
  get("chosen").textContent = bytes(chosenSize());
  updateMode(last);
  get("setnote").textContent = setting.error ? setting.error
    : known(about.fixed) ? about.fixed
    : setting.running && setting.wanted_bytes === 0 ? "on the way to what its engine chooses"
    : setting.running ? `resizing ${bytes(last.pool_bytes)} → ${bytes(setting.wanted_bytes)} in small steps`
    : token ? "" : "Read only. The address with the token, printed when this was started, can set it.";
  updatePrediction(last);
}

/** Who chooses the size, where there is a choice: the engine, or whoever moves the slider. */
function updateMode(last) {
  get("mode").hidden = !known(last.governed);
  const governed = setting.running ? setting.wanted_bytes === 0 : last.governed;
  const words = known(picked) ? ["If it is set", `: fixed at ${bytes(picked)}, even if more memory is free.`]
    : governed ? ["Automatic", ": grows to fill free memory while it helps."]
    : ["Fixed", ": no more than this, whatever is free."];
  get("modenote").replaceChildren(element("b", words[0]), words[1]);
  get("govern").hidden = governed;
  get("govern").disabled = !token;
}

function updatePrediction(last) {
  const rows = [];
  const recent = figures(samples.slice(-10));
  if (known(picked)) {
    const predicted = predict(chosenSize());
    rows.push(["", "now", "predicted"]);
    rows.push(["hit ratio", percent(recent.hit), predicted ? percent(predicted.hit) : "not known"]);
    rows.push(["reads from disk/s", short(recent.reads), predicted ? short(predicted.reads) : "not known"]);
    if (!predicted) get("setnote").textContent = curve.predicted ? "beyond the engine's curve" : curve.note
      || "This server keeps no curve. Points are measured as the pool takes other sizes; two of them make a prediction.";
  } else if (effect) {
    const after = samples.filter(s => s.at_ms > effect.at + 1000).slice(-10), now = figures(after);
    rows.push(["", `before, ${bytes(effect.from)}`, `after, ${bytes(last.pool_bytes)}`]);
    rows.push(["hit ratio", percent(effect.before.hit), percent(now.hit)]);
    if (effect.predicted) rows.push(["predicted", "", percent(effect.predicted.hit)]);
    rows.push(["queries/s", short(effect.before.qps), short(now.qps)]);
    rows.push(["p95", short(effect.before.p95) + " ms", short(now.p95) + " ms"]);
    rows.push(["reads from disk/s", short(effect.before.reads), short(now.reads)]);
  } else {
    rows.push(["hit ratio", "", percent(recent.hit)], ["reads from disk/s", "", short(recent.reads)],
      ["used", "", bytes(last.data_bytes)]);
  }
  get("prediction").replaceChildren(...rows.flatMap(([name, ...cells]) =>
    [element("dt", name), ...cells.map(cell => element("dd", cell, name === "" ? "top" : ""))]));
}

/** Shows a size with its prediction. Nothing is set before the button, or Enter. */
function pick(bytes) {
  picked = known(bytes) ? Math.min(most, Math.max(least, bytes)) : null;
  if (known(picked)) size.value = notchOf(picked);
  updateSlider(); drawCurve();
}
function setPicked() {
  const wanted = picked;
  pick(null);
  if (known(wanted)) setSize(wanted);
}
/** The size after a key; undefined for a key that means nothing here. A key moves it by a unit at least: a notch may be less. */
function sizeAfter(key) {
  const now = chosenSize();
  const by = notches => {
    const next = sizeAt(Math.min(NOTCHES, Math.max(0, notchOf(now) + notches)));
    return notches > 0 ? Math.max(next, now + unit) : Math.min(next, now - unit);
  };
  const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 50, PageDown: -50 };
  return key in moves ? by(moves[key]) : { Home: least, End: most }[key];
}
size.addEventListener("input", () => pick(sizeAt(Number(size.value))));
size.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const next = sizeAfter(event.key);
  if (known(next)) pick(next);
  else if (event.key === "Enter") setPicked();
  else if (event.key === "Escape") pick(null);
  else return;
  event.preventDefault();
});
get("set").addEventListener("click", setPicked);
get("cancel").addEventListener("click", () => pick(null));
get("govern").addEventListener("click", () => { pick(null); setSize(0); });

/** 0 leaves it to the engine. */
async function setSize(wanted) {
  const last = samples[samples.length - 1], predicted = wanted > 0 ? predict(wanted) : null;
  // What the slider can show is no less than an eighth of the size that the page has seen; that may have changed since.
  const answer = await post("/api/size", { bytes: wanted });
  if (answer.ok) {
    effect = { at: Date.now(), from: last.pool_bytes, before: figures(samples.slice(-10)), predicted };
    setting = { running: true, wanted_bytes: wanted };
  } else {
    setting = { error: await answer.text() };
  }
  updateSlider(); drawCurve();
}

function post(path, body) {
  return fetch(path, { method: "POST", headers: { "X-Tidepool-Token": token || "", "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

// --- tables -----------------------------------------------------------------------------------------------------
function tiles(last) {
  const rows = [
    ["qps", short(last.qps), "", "queries/s"],
    ["p95", short(last.p95_ms), "ms", about.p95_source === "own_probe" ? "p95 of own probe" : "p95 of statements"],
    ["hit", percent(last.hit_ratio), "", "hit ratio"],
    ["read", short(last.disk_read_mb_s), "MB/s", "read from disk"],
    ["write", short(last.disk_write_mb_s), "MB/s", "written to disk"],
    ["swap", short(last.swap_mb_s), "MB/s", known(last.server_swapped_bytes) && last.server_swapped_bytes > 0 ? "swap; " + bytes(last.server_swapped_bytes) + " in it" : "swap"],
    ["pool", bytes(last.pool_bytes), "", last.governed ? "pool, governed" : known(last.target_bytes) ? bytes(last.target_bytes) + " would fit" : "pool size"],
  ];
  get("now").classList.toggle("stale", isSilent);
  get("now").replaceChildren(...rows.map(([color, value, unit, name]) => {
    const tile = element("div", null, "tile"), figure = element("b", value);
    tile.style.setProperty("--tone", `var(--${color})`);
    if (unit) figure.append(" ", element("small", unit));
    tile.append(figure, element("span", name));
    return tile;
  }));
}

function showContent(state) {
  // Less would be shown as 0.0.
  const rows = (state.content || []).filter(row => row.mb >= 0.05);
  get("content").hidden = !rows.length;
  get("parts").textContent = rows.some(row => known(row.mb_hot)) ? "hot · cold" : "share";
  get("look").hidden = !state.content_is_costly;
  get("look").disabled = !token;
  const cost = "Scanning INNODB_BUFFER_PAGE blocks queries, for seconds on a large pool.";
  get("contentnote").textContent = state.content_note || (state.content_is_costly
    ? (known(state.content_at_ms) && rows.length ? `As of ${clock(state.content_at_ms)}. ` : "") + cost + (token ? "" : " It needs the token.") : rows.length ? "" : "Nothing is known.");
  const most = Math.max(...rows.map(row => row.mb), 0.001);
  get("content").tBodies[0].replaceChildren(...rows.slice(0, 40).map(row => {
    const line = element("tr"), bar = element("td", null, "bar"), share = element("div", null, "share");
    for (const part of [row.mb_hot ?? 0, row.mb - (row.mb_hot ?? 0)]) {
      const piece = element("i");
      piece.style.width = Math.max(0, part) / most * 100 + "%";
      share.append(piece);
    }
    bar.append(share);
    const name = element("td", row.table);
    name.title = row.table;
    line.append(name, element("td", row.index), element("td", row.mb.toFixed(1), "n"), bar, element("td", known(row.mb_dirty) ? row.mb_dirty.toFixed(1) : "–", "n"));
    return line;
  }));
}

function showDecisions(list, note) {
  get("nodecisions").hidden = list.length > 0 && !note;
  get("nodecisions").textContent = note || "None yet.";
  get("decisions").replaceChildren(...list.map(decision => {
    const item = element("li");
    const time = element("time", local(decision.at));
    time.dateTime = time.title = decision.at;
    item.append(time, decision.text);
    return item;
  }));
}

get("look").addEventListener("click", async () => {
  get("look").disabled = true;
  get("look").textContent = "Scanning …";
  const answer = await post("/api/content", {});
  get("look").textContent = "Scan again";
  await update();
  if (!answer.ok) get("contentnote").textContent = await answer.text();
});
get("spans").addEventListener("click", event => {
  if (!event.target.dataset.s) return;
  span = Number(event.target.dataset.s);
  for (const button of get("spans").children) button.setAttribute("aria-pressed", String(button === event.target));
  drawGraph();
});
get("graph").addEventListener("pointermove", event => { hover = event.offsetX; drawGraph(); });
get("graph").addEventListener("pointerleave", () => { hover = null; drawGraph(); });
get("graph").addEventListener("keydown", event => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Escape") hover = null;
  else if (by) hover = Math.min(get("graph").clientWidth - RIGHT, Math.max(LEFT, (hover ?? get("graph").clientWidth - RIGHT) + by * 8));
  else return;
  event.preventDefault();
  drawGraph();
});
get("graph").addEventListener("blur", () => { hover = null; drawGraph(); });
addEventListener("resize", () => { drawGraph(); drawCurve(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawGraph(); drawCurve(); });

// --- once a second ------------------------------------------------------------------------------------------------
function complain(text) {
  get("error").hidden = !text;
  get("error").textContent = text || "";
  get("state").classList.toggle("bad", Boolean(text));
  get("state").textContent = text ? "no new figures" : "live";
}

async function update() {
  let state;
  try {
    const since = samples.length ? samples[samples.length - 1].at_ms : 0;
    const answer = await fetch("/api/state?since=" + since);
    if (!answer.ok) throw new Error(await answer.text());
    state = await answer.json();
  } catch (error) {
    isSilent = true;
    complain("tidepool watch does not answer: " + error.message);
    get("now").classList.add("stale");
    drawGraph();
    updateSlider();
    return;
  }
  // The server came back with another engine: what there is was of another pool.
  if (about && about.engine !== state.about.engine) { samples = []; effect = null; picked = null; }
  ({ about, curve, setting } = state);
  // After the server's clock was set back, what came before it has times that are still to come.
  if (state.samples.length) samples = samples.filter(s => s.at_ms < state.samples[0].at_ms);
  samples = samples.concat(state.samples).slice(-900);
  get("server").textContent = `${about.server} · ${about.host ? about.host + " " : ""}${about.place} · ${about.engine === "tidepool" ? "Tidepool" : "InnoDB"}'s pool`;
  document.title = `tidepool watch: ${about.host || about.place}`;
  get("sources").textContent = `p95: ${about.p95_words}. Disk: ${about.disk_words}.` + (about.local ? "" : " Host metrics are unavailable: swap and the size that fits are unknown.");
  isSilent = Boolean(state.error);
  if (state.samples.length) heardAt = performance.now();
  complain(state.error);
  const last = samples[samples.length - 1];
  if (last) tiles(last);
  drawGraph();
  updateSlider();
  drawCurve();
  showContent(state);
  showDecisions(state.decisions || [], state.decisions_note);
}

async function forever() {
  await update();
  setTimeout(forever, 1000);
}
forever();
