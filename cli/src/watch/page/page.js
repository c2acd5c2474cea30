"use strict";
// The page's state, and the loop that reads it once a second. Nothing is loaded from elsewhere.

let token = null,
  server = null;
let samples = [],
  about = null,
  curve = { points: [] },
  setting = {},
  decisions = [];
// The size that the slider shows and that is not set yet, bytes; null when it shows the pool's.
let picked = null,
  effect = null;
// When the newest sample came, on this page's own clock, and whether the server answers.
let heardAt = 0,
  isSilent = false;
// The clock of the machine that watches, and this page's at the same moment.
let watcher = null;
// Each change of the server makes answers to earlier questions void.
let era = 0;

/** Now, by the clock that the samples have. */
const serverNow = () => (watcher ? watcher.now_ms + performance.now() - watcher.at : Date.now());

/** A path with its parameters, and the server's name where there are several. */
function address(path, parameters) {
  const query = new URLSearchParams(parameters);
  if (known(server)) query.set("server", server);
  return query.size ? `${path}?${query}` : path;
}

/** What the address' end says: the token, and the server that is shown. */
function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  token = hash.get("token") || token;
  if (server === hash.get("server")) return;
  server = hash.get("server");
  forget();
}

/** Another server, or another engine, has another pool. */
function forget() {
  era++;
  samples = [];
  effect = null;
  picked = null;
  hover = null;
  past = { span: 0, step_s: 1, samples: [], at: 0 };
}

function complain(text) {
  get("error").hidden = !text;
  say("error", text || "");
  get("state").classList.toggle("bad", Boolean(text));
  say("state", text ? "no new figures" : "live");
}

async function update() {
  const asked = era;
  let state;
  try {
    const since = samples.length ? samples[samples.length - 1].at_ms : 0;
    const answer = await fetch(address("/api/state", { since }));
    if (!answer.ok) throw new Error(await answer.text());
    state = await answer.json();
  } catch (error) {
    isSilent = true;
    complain("tidepool watch does not answer: " + error.message);
    if (about && samples.length) tiles(samples[samples.length - 1]);
    drawGraphs();
    updateSlider();
    return;
  }
  if (asked !== era) return;
  if (about && about.engine !== state.about.engine) forget();
  ({ about, curve, setting } = state);
  decisions = state.decisions || [];
  watcher = { now_ms: state.now_ms, at: performance.now() };
  // After the server's clock was set back, what came before it has times that are still to come.
  if (state.samples.length) samples = samples.filter(s => s.at_ms < state.samples[0].at_ms);
  samples = samples.concat(state.samples).slice(-900);
  isSilent = Boolean(state.error);
  if (state.samples.length) heardAt = performance.now();
  complain(state.error);
  showHead(state);
  const last = samples[samples.length - 1];
  if (last) tiles(last);
  showSpans(state.keeps_history);
  drawGraphs();
  updateSlider();
  drawCurve();
  showStatements(state.statements);
  showReplication(state.replication);
  showContent(state);
  showDecisions(decisions, state.decisions_note);
  readPast();
}

function showHead(state) {
  const name = [known(state.server) ? state.server : null, about.host].filter(Boolean).join(", ");
  const pool = about.engine === "tidepool" ? "Tidepool's pool" : "InnoDB's pool";
  say("server", [about.server, `${name} ${about.place}`.trim(), pool].filter(Boolean).join(" · "));
  document.title = `tidepool watch: ${name || about.place}`;
  showServers(state.servers, state.server);
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const off = Math.round((Date.now() - state.now_ms) / 1000);
  say(
    "sources",
    `p95: ${about.p95_words}. Disk: ${about.disk_words}. Times are in ${zone}.` +
      (Math.abs(off) > 2 ? ` This browser's clock differs by ${seconds(Math.abs(off))}.` : "") +
      (about.local
        ? ""
        : " Host metrics are unavailable: swap and the size that fits are unknown."),
  );
}

function redraw() {
  drawGraphs();
  drawCurve();
}
addEventListener("hashchange", () => {
  readHash();
  update();
});
addEventListener("resize", redraw);
for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
  matchMedia(query).addEventListener("change", redraw);
}

async function forever() {
  await update();
  setTimeout(forever, 1000);
}
readHash();
showSpans(false);
setInterval(describeGraphs, 10000);
forever().then(describeGraphs);
