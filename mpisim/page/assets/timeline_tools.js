// The bar above the timeline: zoom, the critical path, which streams, search.

/**
 * @param {TimelineRows} rows
 * @param {Int32Array|number[]} onPath  rows of the critical path
 * @param {object} act  as timeline_input.js has it
 * @param {object} ask  select(row), light(rows or null), streams(which)
 * @returns {{element: HTMLElement, showStreams: function}}
 */
function timelineTools(rows, onPath, act, ask) {
  const state = { path: false, found: null, at: -1, typing: 0 };

  const light = () => ask.light(state.found?.rows ?? (state.path ? onPath : null));

  const path = button(
    "Critical path",
    () => {
      state.path = !state.path;
      path.setAttribute("aria-pressed", String(state.path));
      light();
    },
    { "aria-pressed": "false", hidden: !onPath.length },
  );

  const search = make("input", {
    type: "search",
    placeholder: "Search names",
    "aria-label": "Search rows by name",
  });
  const count = make("span.found", { role: "status" });
  const hits = make(
    "span.together",
    { hidden: true },
    button("‹", () => next(-1), { "aria-label": "Previous match" }),
    button("›", () => next(1), { "aria-label": "Next match" }),
  );

  function tell() {
    const { found, at } = state;
    const many = found?.rows.length ?? 0;
    hits.hidden = !many;
    const which = at >= 0 ? `${digits(at + 1, 0)} of ` : "";
    const all = many ? `${which}${digits(many, 0)} rows, ${time(found.total)}` : "no row of that name";
    fill(count, found ? all : "");
  }

  function look() {
    clearTimeout(state.typing);
    state.typing = 0;
    state.found = search.value.trim() ? rows.find(search.value) : null;
    state.at = -1;
    tell();
    light();
  }

  function next(by) {
    if (state.typing) look();
    const many = state.found?.rows.length ?? 0;
    if (!many) return;
    state.at = state.at < 0 ? (by > 0 ? 0 : many - 1) : (state.at + by + many) % many;
    ask.select(state.found.rows[state.at]);
    tell();
  }

  search.addEventListener("input", () => {
    clearTimeout(state.typing);
    state.typing = setTimeout(look, 120);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
  });

  const streams = [
    ["all", "all"],
    ["compute", "compute"],
  ];
  const picker = choice("Streams", streams, ask.streams);
  picker.hidden = !rows.lanes.some((lane) => lane.computes) || rows.lanes.every((lane) => lane.computes);

  const zoom = make(
    "span.together",
    {},
    button("−", () => act.zoom(1.6), { "aria-label": "Zoom out" }),
    button("+", () => act.zoom(1 / 1.6), { "aria-label": "Zoom in" }),
    button("Whole step", () => act.reset()),
  );
  const pan = make(
    "span.together",
    {},
    button("←", () => act.pan(-0.3, true), { "aria-label": "Move earlier" }),
    button("→", () => act.pan(0.3, true), { "aria-label": "Move later" }),
  );
  const bar = { role: "toolbar", "aria-label": "Timeline" };
  return {
    element: make("div.tools", bar, zoom, pan, path, picker, search, hits, count),
    showStreams(which) {
      picker.querySelector("select").value = which;
    },
  };
}
