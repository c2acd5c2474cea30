"use strict";
// What the page says in tiles, tables and lists.

/** A tile: its figure, unit and name; left out where the server does not report the figure. */
function tileRows(last) {
  const isProbe = about.p95_source === "own_probe";
  const swap = mib(last.swap_mb_s),
    swapped = last.server_swapped_bytes;
  const age = last.checkpoint_age_bytes,
    most = last.checkpoint_age_max_bytes;
  const tier = last.compressed_bytes > 0;
  const rows = [
    ["qps", last.qps, short, "queries/s"],
    ["p95", last.p95_ms, milliseconds, isProbe ? "p95 of a test read" : "p95 of statements"],
    [
      "hit",
      last.hit_ratio,
      hit => percent(1 - hit),
      known(last.hit_ratio) ? `pool misses, ${percent(last.hit_ratio)} hits` : "pool misses",
      true,
    ],
    [
      "qps",
      last.threads_running,
      count,
      known(last.threads_connected)
        ? `threads running of ${last.threads_connected}`
        : "threads running",
    ],
    ["read", mib(last.disk_read_mb_s), bytesPerSecond, "read from disk"],
    ["write", mib(last.disk_write_mb_s), bytesPerSecond, "written to disk"],
    ["swap", swap, bytesPerSecond, swapped > 0 ? "swap; " + bytes(swapped) + " in it" : "swap"],
    [
      "pool",
      last.pool_bytes,
      bytes,
      last.governed
        ? "pool, governed"
        : known(last.target_bytes)
          ? bytes(last.target_bytes) + " would fit"
          : "pool size",
    ],
    [
      "tier",
      tier ? last.tier_holds_bytes : null,
      bytes,
      `of pages compressed in ${bytes(last.compressed_bytes)}, ${perSecond(last.tier_hits_per_s)} hits`,
    ],
    [
      "fits",
      last.dirty_bytes,
      bytes,
      "dirty pages, " +
        percent(last.data_bytes ? last.dirty_bytes / last.data_bytes : 0) +
        " of the used",
    ],
    [
      "qps",
      age,
      bytes,
      known(most) && most > 0
        ? `checkpoint age, ${percent(age / most)} of the most`
        : "checkpoint age",
    ],
    ["hit", last.history_list_length, count, "history list"],
    [
      "p95",
      last.row_lock_waits_per_s,
      perSecond,
      `row lock waits, ${known(last.row_locks_waited_for) ? last.row_locks_waited_for + " now" : "–"}`,
    ],
    ["swap", deadlocks(), count, "deadlocks in 15 min"],
    ["read", last.tmp_disk_tables_per_s, perSecond, "temporary tables on disk"],
    ["p95", last.replication_lag_s, seconds, "replication lag"],
  ];
  return rows.filter(([, value, , , always]) => known(value) || always);
}

/** How many there were while the page's samples last. */
function deadlocks() {
  const rates = samples.map(s => s.deadlocks_per_s).filter(known);
  return rates.length ? Math.round(rates.reduce((a, b) => a + b, 0)) : null;
}

function tiles(last) {
  const section = get("now").parentElement;
  section.classList.toggle("stale", isSilent);
  get("asof").hidden = !isSilent;
  const age = Math.max(0, serverNow() - last.at_ms) / 1000;
  get("asof").textContent = isSilent
    ? `These figures are of ${clock(last.at_ms)}, ${seconds(Math.round(age))} ago.`
    : "";
  get("now").replaceChildren(
    ...tileRows(last).map(([color, value, unit, name]) => {
      const tile = element("div", null, "tile"),
        text = known(value) ? unit(value) : "–";
      const [number, ...rest] = text.split(" "),
        figure = element("dd", number);
      tile.style.setProperty("--tone", `var(--${color})`);
      if (rest.length) figure.append(" ", element("small", rest.join(" ")));
      tile.append(element("dt", name), figure);
      return tile;
    }),
  );
}

/** When something was read, and how long ago that is. */
const asOf = ms =>
  `As of ${clock(ms)}, ${seconds(Math.max(0, Math.round((serverNow() - ms) / 1000)))} ago. `;

function showContent(state) {
  // Less would be shown as 0.0.
  const rows = (state.content || []).filter(row => row.mb >= 0.05);
  const hasHot = rows.some(row => known(row.mb_hot));
  get("content").hidden = !rows.length;
  say("parts", hasHot ? "hot · cold" : "share");
  get("look").hidden = !state.content_is_costly;
  get("look").disabled = !token || isSilent;
  const cost = "Scanning INNODB_BUFFER_PAGE blocks queries, for seconds on a large pool.";
  const age = known(state.content_at_ms) && rows.length ? asOf(state.content_at_ms) : "";
  const how = state.content_is_costly
    ? cost + (token ? "" : " It needs the token.")
    : rows.length
      ? ""
      : "Nothing is known.";
  say("contentnote", state.content_note || age + how);
  const most = Math.max(...rows.map(row => row.mb), 0.001);
  get("content").tBodies[0].replaceChildren(
    ...rows.slice(0, 40).map(row => {
      const line = element("tr"),
        bar = element("td", null, "bar"),
        share = element("div", null, "share");
      const hot = row.mb_hot ?? row.mb;
      for (const part of [hot, row.mb - hot]) {
        const piece = share.appendChild(element("i"));
        piece.style.width = (Math.max(0, part) / most) * 100 + "%";
      }
      if (hasHot) bar.append(element("span", `${hot.toFixed(1)} MiB hot`, "unseen"));
      bar.append(share);
      const dirty = known(row.mb_dirty) ? row.mb_dirty.toFixed(1) : "–";
      line.append(
        element("td", row.table || "–"),
        element("td", row.index || "–"),
        element("td", row.mb.toFixed(1), "n"),
        bar,
        element("td", dirty, "n"),
      );
      return line;
    }),
  );
}

const COSTS = [
  ["calls", s => s.executions, count],
  ["time", s => s.time_s, seconds],
  ["mean", s => (s.time_s * 1000) / s.executions, milliseconds],
  ["pages read", s => s.pages_read, count],
  ["pages", s => s.pages_accessed, count],
  ["rows examined", s => s.rows_examined, count],
  ["tmp on disk", s => s.tmp_disk_tables, count],
];

function showStatements({ rows, source, note }) {
  const order = rows.some(row => known(row.pages_read))
    ? "Most pages read first"
    : "Most time first";
  say(
    "statementsnote",
    [source && `${order}: ${source}.`, note, source && !rows.length && !note && "None yet."]
      .filter(Boolean)
      .join(" "),
  );
  get("statements").hidden = !rows.length;
  const costs = COSTS.filter(([, of]) => rows.some(row => known(of(row))));
  const head = element("tr"),
    first = element("th", "statement");
  first.scope = "col";
  head.append(
    first,
    ...costs.map(([name]) => {
      const made = element("th", name, "n");
      made.scope = "col";
      return made;
    }),
  );
  get("statements").tHead.replaceChildren(head);
  get("statements").tBodies[0].replaceChildren(
    ...rows.map(row => {
      const line = element("tr"),
        name = element("th");
      name.scope = "row";
      name.append(element("code", row.text));
      if (row.schema) name.append(" ", element("span", row.schema, "note"));
      line.append(name, ...costs.map(([, of, unit]) => element("td", unit(of(row)), "n")));
      return line;
    }),
  );
}

function showReplication({ channels, note }) {
  get("replication").hidden = !channels.length && !note;
  get("replicationnote").hidden = !note;
  say("replicationnote", note || "");
  get("channels").replaceChildren(
    ...channels.map(channel => {
      const state = channel.is_running
        ? known(channel.lag_s)
          ? seconds(channel.lag_s) + " behind"
          : "running"
        : "stopped";
      const item = element(
        "li",
        `${channel.name ? channel.name + ": " : ""}from ${channel.source}: ${state}`,
        channel.is_running ? "" : "bad",
      );
      if (channel.error) item.append(element("div", channel.error, "note"));
      return item;
    }),
  );
}

function showDecisions(list, note) {
  get("nodecisions").hidden = list.length > 0 && !note;
  say("nodecisions", note || "None yet.");
  get("decisions").hidden = !list.length;
  get("decisions").replaceChildren(
    ...list.map(decision => {
      const item = element("li"),
        time = element("time", local(decision.at));
      time.dateTime = time.title = decision.at;
      item.append(time, decision.text);
      return item;
    }),
  );
}

/** The servers that are watched, where they are several; a link each. */
function showServers(servers, chosen) {
  get("servers").hidden = !servers.length;
  // A link that has the focus stays: only its words change.
  if (get("servers").children.length !== servers.length) {
    get("servers").replaceChildren(
      ...servers.map(server => {
        const link = element("a");
        link.append(element("b", server.name), element("span"));
        return link;
      }),
    );
  }
  servers.forEach((server, i) => {
    const link = get("servers").children[i],
      hash = new URLSearchParams({ server: server.name });
    if (token) hash.set("token", token);
    link.href = "#" + hash;
    link.classList.toggle("bad", Boolean(server.error));
    if (server.name === chosen) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    const lag = known(server.replication_lag_s)
      ? `, ${seconds(server.replication_lag_s)} behind`
      : "";
    const words = server.error
      ? "does not answer"
      : known(server.qps)
        ? `${short(server.qps)} queries/s, ${known(server.hit_ratio) ? percent(1 - server.hit_ratio) + " misses" : "–"}${lag}`
        : "…";
    if (link.lastChild.textContent !== words) link.lastChild.textContent = words;
  });
}

get("look").addEventListener("click", async () => {
  get("look").disabled = true;
  get("look").textContent = "Scanning …";
  const answer = await post("/api/content", {});
  get("look").textContent = "Scan again";
  await update();
  if (!answer.ok) get("contentnote").textContent = await answer.text();
});
