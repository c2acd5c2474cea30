"use strict";
// The slider: it shows a size with its prediction, sets it on confirmation, and shows the effect.

const size = get("size"),
  NOTCHES = 1000;
size.min = 0;
size.max = NOTCHES;
size.step = 1;
// The ends of the slider and its unit, bytes. In between it is logarithmic: a MiB matters in a pool
// of 64, not in one of 64,000.
let least = MIB,
  most = MIB,
  unit = MIB;
const sizeAt = notch =>
  Math.max(
    about.least_bytes,
    Math.round((least * (most / least) ** (notch / NOTCHES)) / unit) * unit,
  );
const notchOf = bytes =>
  most > least ? Math.round((Math.log(bytes / least) / Math.log(most / least)) * NOTCHES) : NOTCHES;
/** What the slider says: what was picked and not set yet, else what is wanted or is. */
function chosenSize() {
  const last = samples[samples.length - 1];
  if (known(picked)) return picked;
  return setting.running && setting.wanted_bytes > 0
    ? setting.wanted_bytes
    : last
      ? last.pool_bytes
      : 0;
}

function mean(list, value) {
  const found = list.map(value).filter(known);
  return found.length ? found.reduce((a, b) => a + b, 0) / found.length : null;
}
const miss = hit => (known(hit) ? percent(1 - hit) : "–");
/** So long a pool reads its pages again after a resize, about. */
const SETTLES_S = 30;
const figures = list => ({
  qps: mean(list, s => s.qps),
  hit: mean(list, s => s.hit_ratio),
  p95: mean(list, s => s.p95_ms),
  reads: mean(list, s => s.reads_per_s),
});

function updateSlider() {
  const last = samples[samples.length - 1];
  if (!last || !about) return;
  const now = last.pool_bytes,
    fits = last.target_bytes;
  if (effect && !effect.done && !setting.running) effect.done = last.at_ms;
  if (!known(picked)) {
    unit = Math.max(1, about.unit_bytes);
    // From an eighth of today's size, but no less than the engine takes, to the size that fits, or
    // to four times today's size where that is not known.
    most = Math.max(now, Math.min(known(fits) ? fits : now * 4, now * 16));
    most = Math.max(Math.floor(most / unit) * unit, now, about.least_bytes);
    least = Math.max(about.least_bytes, Math.ceil(now / 8 / unit) * unit);
    size.value = notchOf(chosenSize());
  }
  size.disabled = !token || known(about.fixed) || isSilent;
  get("confirm").hidden = !known(picked);
  say("confirmnote", known(picked) ? `${bytes(now)} → ${bytes(picked)}: nothing is set yet` : "");
  get("set").textContent = known(picked) ? `Set to ${bytes(picked)}` : "";
  size.setAttribute("aria-valuetext", bytes(chosenSize()));
  get("least").textContent = bytes(least);
  get("most").textContent = bytes(most);
  get("fits").textContent = known(fits) ? `available maximum: ${bytes(fits)}` : "";
  get("chosen").textContent = bytes(chosenSize());
  updateMode(last);
  say(
    "setnote",
    setting.error
      ? setting.error
      : known(about.fixed)
        ? about.fixed
        : setting.running && setting.wanted_bytes === 0
          ? "on the way to what its engine chooses"
          : setting.running
            ? `resizing ${bytes(last.pool_bytes)} → ${bytes(setting.wanted_bytes)} in small steps`
            : token
              ? ""
              : "Read only. The address with the token, printed when this was started, can set it.",
  );
  updatePrediction(last);
}

/** Whether the engine or the user of the slider chooses the size, where there is a choice. */
function updateMode(last) {
  get("mode").hidden = !known(last.governed);
  const governed = setting.running ? setting.wanted_bytes === 0 : last.governed;
  const words = known(picked)
    ? ["If it is set", `: fixed at ${bytes(picked)}, even if more memory is free.`]
    : governed
      ? ["Automatic", ": grows to fill free memory while it helps."]
      : ["Fixed", ": no more than this, however much memory is free."];
  get("modenote").replaceChildren(element("b", words[0]), words[1]);
  get("govern").hidden = governed;
  get("govern").disabled = !token;
}

/** Rows of the table below the slider; the first one names the columns. */
function predictionRows(last) {
  const recent = figures(samples.slice(-10));
  if (known(picked)) {
    const predicted = predict(chosenSize());
    return [
      ["", "now", "predicted"],
      ["miss ratio", miss(recent.hit), predicted ? miss(predicted.hit) : "not known"],
      ["reads from disk/s", short(recent.reads), predicted ? short(predicted.reads) : "not known"],
    ];
  }
  if (!effect) {
    return [
      ["", "now"],
      ["miss ratio", miss(recent.hit)],
      ["reads from disk/s", short(recent.reads)],
      ["used", bytes(last.data_bytes)],
    ];
  }
  // A pool that has another size reads its pages first: what comes at once is not its effect.
  const since = effect.done ? Math.max(0, (last.at_ms - effect.done) / 1000) : 0;
  const after = effect.done ? samples.filter(s => s.at_ms > effect.done + 2000).slice(-10) : [],
    now = figures(after);
  const when = !effect.done
    ? "resizing"
    : since < SETTLES_S
      ? `after ${since.toFixed(0)} s, still settling`
      : `after, ${bytes(last.pool_bytes)}`;
  const rows = [
    ["", `before, ${bytes(effect.from)}`, when],
    ["miss ratio", miss(effect.before.hit), miss(now.hit)],
  ];
  if (effect.predicted) rows.push(["predicted", "", miss(effect.predicted.hit)]);
  rows.push(
    ["queries/s", short(effect.before.qps), short(now.qps)],
    ["p95", milliseconds(effect.before.p95), milliseconds(now.p95)],
    ["reads from disk/s", short(effect.before.reads), short(now.reads)],
  );
  return rows;
}

function updatePrediction(last) {
  if (known(picked) && !predict(chosenSize())) {
    say(
      "setnote",
      curve.predicted
        ? "beyond the engine's curve"
        : curve.note ||
            "This server keeps no curve. Points are measured as the pool takes other sizes; two of them make a prediction.",
    );
  }
  get("prediction").tBodies[0].replaceChildren(
    ...predictionRows(last).map(([name, ...cells], i) => {
      const row = element("tr"),
        head = element(name === "" ? "td" : "th", name);
      if (name !== "") head.scope = "row";
      row.append(
        head,
        ...cells.map(cell => {
          const made = element(i === 0 ? "th" : "td", cell);
          if (i === 0) made.scope = "col";
          return made;
        }),
      );
      return row;
    }),
  );
}

/** Shows a size with its prediction. Nothing is set before the button, or Enter. */
function pick(bytes) {
  picked = known(bytes) ? Math.min(most, Math.max(least, bytes)) : null;
  if (known(picked)) size.value = notchOf(picked);
  updateSlider();
  drawCurve();
}
function setPicked() {
  const wanted = picked;
  pick(null);
  if (known(wanted)) setSize(wanted);
}
/**
 * The size after a key; undefined for a key that means nothing here. A key moves it by a unit at
 * least: a notch may be less.
 */
function sizeAfter(key) {
  const now = chosenSize();
  const by = notches => {
    const next = sizeAt(Math.min(NOTCHES, Math.max(0, notchOf(now) + notches)));
    return notches > 0 ? Math.max(next, now + unit) : Math.min(next, now - unit);
  };
  const moves = {
    ArrowRight: 1,
    ArrowUp: 1,
    ArrowLeft: -1,
    ArrowDown: -1,
    PageUp: 50,
    PageDown: -50,
  };
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
get("govern").addEventListener("click", () => {
  pick(null);
  setSize(0);
});

/** 0 leaves it to the engine. */
async function setSize(wanted) {
  const last = samples[samples.length - 1],
    predicted = wanted > 0 ? predict(wanted) : null;
  // What the slider can show is no less than an eighth of the size that the page has seen; that may have changed since.
  const answer = await post("/api/size", { bytes: wanted });
  if (answer.ok) {
    effect = { from: last.pool_bytes, before: figures(samples.slice(-10)), predicted };
    setting = { running: true, wanted_bytes: wanted };
  } else {
    setting = { error: await answer.text() };
  }
  updateSlider();
  drawCurve();
}

function post(path, body) {
  const headers = { "X-Tidepool-Token": token || "", "Content-Type": "application/json" };
  return fetch(address(path, {}), { method: "POST", headers, body: JSON.stringify(body) });
}
