// Where the step goes: one stacked bar for the mean GPU, and one for each stage.

const ROWS_AT_FIRST = 17;
const PAINTS_OF_KIND = {
  compute: ["forward", "backward", "recompute", "optimizer", "copy"],
  wire: ["collective", "p2p", "copy"],
  waiting: ["waiting"],
  idle: ["idle", "host"],
  input: ["host", "copy"],
};

/** Names and kinds of parts → the colour of each. A part keeps the colour that its phase has. */
function paintsOfParts(names, kinds) {
  const used = new Set();
  return names.map((name, i) => {
    const wanted = paintOfPhase(name);
    const possible = PAINTS_OF_KIND[kinds[i]] ?? ["host"];
    const paint =
      kinds[i] === "compute" && wanted && !used.has(wanted)
        ? wanted
        : (possible.find((each) => !used.has(each)) ?? possible[0]);
    used.add(paint);
    return paint;
  });
}

/** Name of a phase → its colour, or null. */
function paintOfPhase(name) {
  const text = String(name).toLowerCase();
  if (/recomput/.test(text)) return "recompute";
  if (/forward/.test(text)) return "forward";
  if (/backward|gradient/.test(text)) return "backward";
  if (/optim|update/.test(text)) return "optimizer";
  return null;
}

function stepSection(parts, whole) {
  const paints = paintsOfParts(parts.names, parts.kinds);
  const grid = make("div.strips", {
    role: "group",
    "aria-label": "Parts of the step; up and down choose a row",
  });
  const keys = make("ul.keys");
  const who = make("h3", { "aria-live": "polite" });
  const most = Math.max(whole, ...parts.rows.map((row) => sum(row.ps)));
  const state = { row: 0, part: -1, all: parts.rows.length <= ROWS_AT_FIRST };
  const strips = [];

  function drawRows() {
    grid.replaceChildren();
    strips.length = 0;
    const rows = state.all || theme.printing ? parts.rows : parts.rows.slice(0, ROWS_AT_FIRST);
    rows.forEach((row, r) => {
      const total = sum(row.ps);
      const strip = make(r === 0 ? "div.strip.first" : "div.strip", {
        role: "img",
        tabindex: r === state.row ? "0" : "-1",
        "aria-label": `${clipped(row.name, 80)}: ${parts.names.map((name, i) => `${clipped(name, 60)} ${time(row.ps[i])}`).join(", ")}`,
      });
      row.ps.forEach((ps, i) => {
        const piece = make(parts.kinds[i] === "waiting" ? "i.hatched" : "i");
        paint(piece, paints[i]);
        piece.style.width = `${(100 * ps) / most}%`;
        piece.dataset.part = i;
        strip.append(piece);
      });
      strip.addEventListener("focus", () => choose(r, state.part));
      strip.addEventListener("pointerover", (event) => choose(r, Number(event.target.dataset.part ?? -1)));
      strip.addEventListener("keydown", (event) => step(event, r));
      strips.push(strip);
      grid.append(
        make(
          "div.who",
          {},
          clipped(row.name, 80),
          row.gpus > 1 && r > 0 ? make("small", {}, `${digits(row.gpus, 0)} GPUs`) : null,
        ),
        strip,
        make("div.sum", {}, time(total)),
      );
    });
  }

  function step(event, r) {
    const rows = { ArrowDown: r + 1, ArrowUp: r - 1, Home: 0, End: strips.length - 1 }[event.key];
    const part = { ArrowRight: state.part + 1, ArrowLeft: state.part - 1 }[event.key];
    if (rows !== undefined && strips[rows]) {
      choose(rows, state.part);
      strips[rows].focus();
    } else if (part !== undefined) choose(r, Math.max(-1, Math.min(parts.names.length - 1, part)));
    else return;
    event.preventDefault();
  }

  function choose(row, part) {
    if (row === state.row && part === state.part) return;
    Object.assign(state, { row, part });
    strips.forEach((strip, r) => {
      strip.tabIndex = r === row ? 0 : -1;
      for (const piece of strip.children) piece.classList.toggle("on", Number(piece.dataset.part) === part);
    });
    grid.classList.toggle("chosen", part >= 0);
    drawKeys();
  }

  const lines = parts.names.map((name, i) => {
    const line = button("", () => choose(state.row, state.part === i ? -1 : i));
    const value = make("span.value");
    const share = make("span.part");
    line.append(
      swatch(paints[i], parts.kinds[i] === "waiting"),
      make("span.name", {}, clipped(name, 80)),
      value,
      share,
    );
    line.addEventListener("pointerenter", () => choose(state.row, i));
    line.addEventListener("focus", () => choose(state.row, i));
    keys.append(make("li", {}, line));
    return { line, value, share };
  });

  function drawKeys() {
    const row = parts.rows[state.row];
    const total = sum(row.ps);
    fill(who, `${clipped(row.name, 80)}, ${time(total)}`);
    lines.forEach(({ line, value, share }, i) => {
      fill(value, time(row.ps[i]));
      fill(share, percent(row.ps[i] / total));
      line.setAttribute("aria-pressed", String(state.part === i));
    });
  }

  grid.addEventListener("pointerleave", () => choose(state.row, -1));
  keys.addEventListener("pointerleave", () => choose(state.row, -1));
  keys.addEventListener("focusout", () => choose(state.row, -1));
  const more = button(`Show all ${parts.rows.length} rows`, () => {
    state.all = true;
    more.hidden = true;
    drawRows();
  });
  more.hidden = state.all;
  more.classList.add("onscreen");
  theme.changed.push(() => {
    if (!state.all) drawRows();
  });
  drawRows();
  drawKeys();
  return make("div.card.stack", {}, grid, more, make("div.stack", {}, who, keys));
}

/** Sum of a list. */
function sum(values) {
  let total = 0;
  for (const value of values) total += value ?? 0;
  return total;
}
