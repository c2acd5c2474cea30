// Faults of the page for users who can't see it, or not all of it, or have no pointer: sentences.
// Runs in the page. It checks what this page uses and no more.
(() => {
  const wrong = [];
  const forced = matchMedia("(forced-colors: active)").matches;
  const name = element =>
    element.id
      ? "#" + element.id
      : element.tagName.toLowerCase() +
        (element.className ? "." + String(element.className).split(" ")[0] : "");
  const isShown = element => element.checkVisibility() && element.getClientRects().length > 0;
  const all = selector => [...document.querySelectorAll(selector)].filter(isShown);

  // --- structure
  if (!document.documentElement.lang) wrong.push("the document has no language");
  if (!document.title) wrong.push("the document has no title");
  for (const tag of ["main", "h1"])
    if (all(tag).length !== 1) wrong.push(`there are ${all(tag).length} ${tag}`);
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const found = Number(heading.tagName[1]);
    if (found > level + 1) wrong.push(`${name(heading)} skips a level`);
    level = found;
  }
  const ids = [...document.querySelectorAll("[id]")].map(element => element.id);
  for (const id of ids)
    if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`#${id} is there twice`);
  for (const attribute of ["aria-labelledby", "aria-describedby"]) {
    for (const element of document.querySelectorAll(`[${attribute}]`)) {
      for (const id of element.getAttribute(attribute).split(" ")) {
        if (!document.getElementById(id))
          wrong.push(`${name(element)}: ${attribute} names #${id}, which is not there`);
      }
    }
  }
  for (const head of document.querySelectorAll("th"))
    if (!head.scope) wrong.push(`th "${head.textContent}" has no scope`);
  for (const list of all("dl")) {
    for (const child of list.querySelectorAll("dt, dd"))
      if (!child.textContent.trim()) wrong.push(`${name(list)} has an empty ${child.tagName}`);
  }

  // --- names, and what takes the focus
  const textOf = ids =>
    ids
      .split(" ")
      .map(id => document.getElementById(id)?.textContent ?? "")
      .join(" ");
  const label = element =>
    (
      element.getAttribute("aria-label") ||
      (element.hasAttribute("aria-labelledby") &&
        textOf(element.getAttribute("aria-labelledby"))) ||
      element.textContent ||
      ""
    ).trim();
  for (const element of all(
    "button, a, input, summary, canvas, [role=img], [role=region], [role=group], nav, [tabindex]",
  )) {
    if (!label(element)) wrong.push(`${name(element)} has no name`);
  }
  for (const element of all("[tabindex]"))
    if (element.tabIndex > 0) wrong.push(`${name(element)} changes the order of the keyboard's focus`);
  const canFocus = "button, a[href], input, summary, [tabindex]";
  for (const element of all("body *")) {
    const { overflowX, overflowY } = getComputedStyle(element);
    const scrolls =
      (["auto", "scroll"].includes(overflowX) && element.scrollWidth > element.clientWidth + 1) ||
      (["auto", "scroll"].includes(overflowY) && element.scrollHeight > element.clientHeight + 1);
    if (scrolls && !element.matches(canFocus) && !element.querySelector(canFocus))
      wrong.push(`${name(element)} scrolls, and no key reaches it`);
  }
  for (const group of all("#spans")) {
    if (group.querySelectorAll("[aria-pressed=true]").length !== 1)
      wrong.push("not one of the times is chosen");
  }

  // --- room
  const page = document.documentElement;
  // A phone zooms out on a page that is too wide: what it should be is the width of the layout.
  if (page.scrollWidth > page.clientWidth) {
    const isWide = element =>
      element.getBoundingClientRect().right > page.clientWidth + 1 && !element.closest(".scroll");
    const widest = all("body *").filter(isWide).map(name).slice(0, 5);
    wrong.push(`the page is ${page.scrollWidth} px wide, of ${page.clientWidth}: ${widest}`);
  }
  for (const element of all("body *")) {
    const style = getComputedStyle(element);
    if (
      element.closest(".unseen") ||
      !["hidden", "clip"].includes(style.overflowX) ||
      !element.textContent.trim()
    )
      continue;
    if (element.scrollWidth > element.clientWidth + 1)
      wrong.push(`${name(element)} cuts "${element.textContent.slice(0, 30)}" off`);
  }
  for (const element of all("button, summary, nav a")) {
    const { width, height } = element.getBoundingClientRect();
    if (element.tagName !== "SUMMARY" && (width < 24 || height < 24))
      wrong.push(`${name(element)} is ${width} by ${height} px`);
  }
  const tiles = all(".tile").map(tile => tile.getBoundingClientRect());
  tiles.forEach((a, i) =>
    tiles.slice(i + 1).forEach(b => {
      if (
        a.left < b.right - 1 &&
        b.left < a.right - 1 &&
        a.top < b.bottom - 1 &&
        b.top < a.bottom - 1
      )
        wrong.push("two tiles overlap");
    }),
  );

  // --- contrast
  const parse = text => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return { rgb: numbers.slice(0, 3).map(number => number * scale), alpha: numbers[3] ?? 1 };
  };
  const over = (front, back) =>
    front.rgb.map((value, i) => value * front.alpha + back[i] * (1 - front.alpha));
  const ground = element => {
    const chain = [];
    for (let at = element; at; at = at.parentElement)
      chain.push(parse(getComputedStyle(at).backgroundColor));
    return chain
      .reverse()
      .reduce((back, front) => over(front, back), forced ? [0, 0, 0] : [255, 255, 255]);
  };
  const luminance = rgb =>
    rgb
      .map(value => value / 255)
      .map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => {
    const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (light + 0.05) / (dark + 0.05);
  };
  for (const element of all("body *")) {
    const hasText = [...element.childNodes].some(
      node => node.nodeType === Node.TEXT_NODE && node.textContent.trim(),
    );
    if (!hasText || element.closest(".unseen") || element.disabled) continue;
    const style = getComputedStyle(element),
      back = ground(element);
    const opacity = (() => {
      let all = 1;
      for (let at = element; at; at = at.parentElement) all *= Number(getComputedStyle(at).opacity);
      return all;
    })();
    const color = parse(style.color);
    const found = contrast(over({ rgb: color.rgb, alpha: color.alpha * opacity }, back), back);
    const size = parseFloat(style.fontSize),
      isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (found < (isLarge ? 3 : 4.5))
      wrong.push(
        `${name(element)} "${element.textContent.slice(0, 30)}" has a contrast of ${found.toFixed(2)}`,
      );
  }
  const card = ground(document.querySelector(".card"));
  for (const chart of CHARTS)
    for (const series of all_series(chart)) {
      const found = contrast(parse(tone(series.tone)).rgb, card);
      if (found < 3) wrong.push(`the line "${series.name}" has a contrast of ${found.toFixed(2)}`);
    }
  function all_series(chart) {
    return [chart.left, chart.right].filter(Boolean).flatMap(side => side.series);
  }
  // The lines of one graph differ by dashes or by filling, for users who do not see the colours.
  for (const chart of CHARTS) {
    const looks = all_series(chart)
      .filter(series => !series.label.hidden)
      .map(series => series.dash + (series.fill || ""));
    const lines = looks.filter(look => ["solid", "dashed", "dotted"].includes(look));
    if (new Set(lines).size < lines.length)
      wrong.push(`two lines of "${chart.title}" look the same`);
  }
  return wrong;
})();
