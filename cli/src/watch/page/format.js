"use strict";
// Numbers and times for people, and small parts of the document. All text from the server goes into
// the document as text (textContent), never as markup: a table may be named anything.

const MIB = 1048576;
const get = id => document.getElementById(id);
const known = value => value !== null && value !== undefined && !Number.isNaN(value);

function element(tag, text, cls) {
  const made = document.createElement(tag);
  if (known(text)) made.textContent = text;
  if (cls) made.className = cls;
  return made;
}

/** Sets a text only when it is another one: what is announced is announced once. */
function say(id, text) {
  if (get(id).textContent !== text) get(id).textContent = text;
}

function short(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(1) + "G";
  if (size >= 1e6) return (value / 1e6).toFixed(1) + "M";
  if (size >= 1e4) return (value / 1e3).toFixed(1) + "K";
  if (size >= 100 || value === 0) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.1 ? value.toFixed(2) : value.toPrecision(2);
}
/** Whole numbers without decimals. */
const count = value =>
  known(value) && Number.isInteger(value) && value < 1e4 ? String(value) : short(value);

function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  const whole = value >= 100 || Number.isInteger(value) || unit === 0;
  return (whole ? value.toFixed(0) : value.toFixed(1)) + " " + units[unit];
}
const bytesPerSecond = value => (known(value) ? bytes(value) + "/s" : "–");
function percent(value) {
  if (!known(value)) return "–";
  return value > 0 && value < 1e-5 ? "< 0.001 %" : short(value * 100) + " %";
}
const perSecond = value => (known(value) ? short(value) + "/s" : "–");
const milliseconds = value => (known(value) ? short(value) + " ms" : "–");
function seconds(value) {
  if (!known(value)) return "–";
  if (value < 120) return count(value) + " s";
  return value < 7200 ? (value / 60).toFixed(0) + " min" : (value / 3600).toFixed(1) + " h";
}

const clock = ms => new Date(ms).toLocaleTimeString([], { hour12: false });
const shortClock = ms =>
  new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
const day = ms => new Date(ms).toLocaleDateString([], { month: "short", day: "numeric" });
/** A time of a log, which is in UTC, on this browser's clock as the graphs' times are. */
function local(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : at.toLocaleDateString() + " " + clock(at);
}

// A colour of the style sheet, as the canvas takes it: system colours resolved.
const probe = document.body.appendChild(element("i"));
probe.id = "probe";
function tone(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
