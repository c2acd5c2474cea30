"use strict";
// The curve of misses by size, and what it predicts.

/**
 * Hit ratio at a size, between the points of the curve, straight in log(size) and log(miss); null
 * beyond what is known.
 */
function predict(size) {
  const points = curve.points.filter(p => p.size_bytes > 0);
  if (points.length < 2) return null;
  const last = points.length - 1;
  if (size < points[0].size_bytes / 2 || size > points[last].size_bytes * 2) return null;
  let right = points.findIndex(p => p.size_bytes >= size);
  right = right < 0 ? last : Math.max(1, right);
  const [a, b] = [points[right - 1], points[right]];
  const part =
    (Math.log(size) - Math.log(a.size_bytes)) / (Math.log(b.size_bytes) - Math.log(a.size_bytes));
  const between = (from, to) =>
    Math.exp(Math.log(Math.max(from, 1e-6)) * (1 - part) + Math.log(Math.max(to, 1e-6)) * part);
  return {
    hit: Math.max(0, 1 - Math.min(1, between(1 - a.hit_ratio, 1 - b.hit_ratio))),
    reads: between(a.reads_per_s, b.reads_per_s),
  };
}

function drawCurve() {
  const { draw, width, height } = surface(get("curve"));
  const last = samples[samples.length - 1];
  const points = curve.points.filter(p => p.size_bytes > 0);
  say(
    "curvekind",
    curve.predicted ? "predicted by the engine" : "measured at the sizes that the pool has had",
  );
  get("curvenote").hidden = !curve.note;
  say("curvenote", curve.note || "");
  const chosen = chosenSize();
  const now = last ? [last.pool_bytes] : [],
    then = known(picked) ? [chosen] : [];
  const sizes = points
    .map(p => p.size_bytes)
    .concat(now, then)
    .filter(s => s > 0);
  const words = points.map(p => `${bytes(p.size_bytes)}: ${percent(1 - p.hit_ratio)}`);
  get("curve").setAttribute(
    "aria-label",
    "Miss ratio of the pool by size: " + (words.join(", ") || "not known yet"),
  );
  if (!sizes.length) return;
  const low = Math.min(...sizes) / 1.3,
    high = Math.max(...sizes) * 1.3;
  const area = { left: 56, right: width - 12, top: 24, bottom: height - 22 };
  const x = size =>
    area.left + (Math.log(size / low) / Math.log(high / low)) * (area.right - area.left);
  const misses = points
    .map(p => 1 - p.hit_ratio)
    .concat(last && known(last.hit_ratio) ? [1 - last.hit_ratio] : []);
  const max = Math.min(100, ceiling(Math.max(0.0001, ...misses) * 105)) / 100;
  const y = miss => area.bottom - (miss / max) * (area.bottom - area.top);
  axes(draw, area, { max: max * 100, unit: v => short(v) + " %" });
  draw.textAlign = "center";
  let free = -Infinity;
  for (const size of [...new Set(points.map(p => p.size_bytes))].concat(
    points.length ? [] : sizes,
  )) {
    const text = bytes(size),
      wide = draw.measureText(text).width / 2;
    if (x(size) - wide < free || x(size) + wide > width) continue;
    draw.fillText(text, x(size), height - 6);
    free = x(size) + wide + 10;
  }
  draw.strokeStyle = draw.fillStyle = tone("hit");
  draw.lineWidth = 2;
  draw.beginPath();
  points.forEach((p, i) =>
    i
      ? draw.lineTo(x(p.size_bytes), y(1 - p.hit_ratio))
      : draw.moveTo(x(p.size_bytes), y(1 - p.hit_ratio)),
  );
  draw.stroke();
  for (const p of points) {
    draw.beginPath();
    draw.arc(x(p.size_bytes), y(1 - p.hit_ratio), 3.5, 0, 7);
    draw.fill();
  }
  const labelled = (size, text, color, row) => {
    const isRight = x(size) > width * 0.6;
    draw.strokeStyle = draw.fillStyle = tone(color);
    draw.lineWidth = 1.2;
    draw.setLineDash([4, 3]);
    draw.beginPath();
    draw.moveTo(x(size), area.top - 6);
    draw.lineTo(x(size), area.bottom);
    draw.stroke();
    draw.setLineDash([]);
    draw.textAlign = isRight ? "right" : "left";
    draw.fillText(text, x(size) + (isRight ? -5 : 5), area.top + row * 13);
  };
  if (last) labelled(last.pool_bytes, "current: " + bytes(last.pool_bytes), "pool", 0);
  if (known(picked) && chosen > 0) labelled(chosen, bytes(chosen), "fits", 1);
}
