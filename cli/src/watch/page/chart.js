"use strict";
// Drawing on canvases: axes, lines, marks. What is drawn is in graphs.js and curve.js.

const LEFT = 62,
  RIGHT = 56,
  TOP = 8,
  BOTTOM = 20;
const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3] };

function surface(canvas) {
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth,
    height = canvas.clientHeight;
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

/** The next round number above `value`: of 1, 2, 2.5, 5 times a power of ten, or of two for bytes. */
function ceiling(value, binary) {
  if (!(value > 0)) return 1;
  const base = binary ? 2 ** Math.floor(Math.log2(value)) : 10 ** Math.floor(Math.log10(value));
  const steps = binary ? [1, 1.25, 1.5, 2] : [1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10];
  return base * steps.find(step => step * base >= value * 0.999999);
}

/** Lines across, with a number at each: the left axis' and the right one's. */
function axes(draw, area, left, right) {
  draw.lineWidth = 1;
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(area.bottom - part * (area.bottom - area.top)) + 0.5;
    draw.strokeStyle = tone("grid");
    draw.beginPath();
    draw.moveTo(area.left, y);
    draw.lineTo(area.right, y);
    draw.stroke();
    draw.fillStyle = tone("soft");
    draw.textAlign = "right";
    draw.fillText(left.unit(left.max * part), area.left - 6, y + 4);
    if (!right) continue;
    draw.textAlign = "left";
    draw.fillText(right.unit(right.max * part), area.right + 6, y + 4);
  }
}

/**
 * One series. A gap is a gap, not a slope: each run of samples is a line, and an area, by itself.
 * `gap` is the time without a sample that makes one, ms; values above `cap` are not drawn.
 */
function line(draw, samples, series, { x, area, max, gap, cap }) {
  draw.strokeStyle = draw.fillStyle = tone(series.tone);
  draw.lineWidth = 1.6;
  draw.setLineDash(DASHES[series.dash]);
  const runs = [];
  let last = null;
  for (const sample of samples) {
    const v = series.of(sample);
    if (!known(v) || (cap && v > cap)) {
      last = null;
      continue;
    }
    if (last === null || sample.at_ms - last > gap) runs.push([]);
    const y = area.bottom - Math.min(1, v / max) * (area.bottom - area.top);
    runs[runs.length - 1].push([Math.max(area.left, x(sample.at_ms)), y]);
    last = sample.at_ms;
  }
  for (const run of runs) {
    draw.beginPath();
    run.forEach(([px, py], i) => (i ? draw.lineTo(px, py) : draw.moveTo(px, py)));
    // A single sample between two gaps is seen, too.
    if (run.length === 1) draw.lineTo(run[0][0] + 1.5, run[0][1]);
    draw.stroke();
    if (!series.fill) continue;
    draw.lineTo(run[run.length - 1][0], area.bottom);
    draw.lineTo(run[0][0], area.bottom);
    draw.closePath();
    draw.globalAlpha = series.fill;
    draw.fill();
    draw.globalAlpha = 1;
  }
  draw.setLineDash([]);
}

const STEPS_S = [20, 60, 120, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 432000];
/** Times along the lower edge, as close as the labels have room, and none over another. */
function times(draw, area, start, end, x) {
  const room = (area.right - area.left) / ((end - start) / 1000);
  const step = (STEPS_S.find(step => step * room >= 74) || 864000) * 1000;
  const text = step < 60e3 ? clock : step < 86400e3 ? shortClock : day;
  // Whole hours and days of this browser's zone.
  const shift = new Date(start).getTimezoneOffset() * 60e3;
  draw.fillStyle = tone("soft");
  draw.textAlign = "center";
  for (let at = Math.ceil((start - shift) / step) * step + shift; at <= end; at += step) {
    const wide = draw.measureText(text(at)).width / 2;
    if (x(at) - wide < area.left - 20 || x(at) + wide > area.right + 30) continue;
    draw.fillText(text(at), x(at), area.bottom + 15);
  }
}

function upright(draw, at, area, color) {
  draw.strokeStyle = tone(color);
  draw.lineWidth = 1;
  draw.beginPath();
  draw.moveTo(at, area.top);
  draw.lineTo(at, area.bottom);
  draw.stroke();
}

/** A triangle at the upper edge: something was decided then. */
function flag(draw, at, area) {
  draw.fillStyle = tone("accent");
  draw.beginPath();
  draw.moveTo(at - 4, area.top - 6);
  draw.lineTo(at + 4, area.top - 6);
  draw.lineTo(at, area.top + 1);
  draw.closePath();
  draw.fill();
}
