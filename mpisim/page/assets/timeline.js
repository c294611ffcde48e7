// The section of the timeline: tools, canvas, what is known of a row.

const LEAST_SPAN = 10_000; // ps that the timeline can be zoomed to
const LANES_AT_FIRST = 40; // with more of them, only compute streams are shown at first
const PAPER_WIDTH = 960;

/**
 * @param {object} payload  with a timeline
 * @returns {{element: HTMLElement, showRow: function, showSpan: function}}
 */
function timelineSection(payload) {
  const { timeline } = payload;
  const rows = new TimelineRows(timeline, payload.whole_ps);
  const painter = new TimelinePainter(rows);
  const pieces = payload.path?.pieces;
  const onPath = pieces?.row?.length ? pieces.row.filter((row) => row >= 0) : [];
  const view = { begin: 0, end: rows.whole, top: 0, selected: -1, hovered: -1, lit: null, groups: timeline.groups, marks: [] };
  const state = { path: false, found: null, at: -1, streams: rows.lanes.length > LANES_AT_FIRST ? "compute" : "all", layout: null, width: 0, height: 0, motion: 0, goal: null };

  const said = make("div.unseen", { "aria-live": "polite", "data-role": "said" });
  const announce = announcer(said);
  const panel = make("div.card.panel", { "data-role": "row" });
  const canvas = make("canvas.lanes", {
    tabindex: "0", role: "application", "aria-roledescription": "timeline",
    "aria-label": "Timeline of the step. W and S zoom, A and D move, full stop and comma go from row to row, up and down from lane to lane.",
  });
  const whole = make("canvas.whole", { "aria-hidden": "true" });
  const tall = make("div.tall", {}, canvas);
  const frame = make("div.window", {}, tall);
  const tip = make("div.tip", { hidden: true, "aria-hidden": "true" });
  const stage = make("div.stage", {}, frame, whole, tip);

  // What is drawn.

  const draw = () => {
    const width = theme.printing ? Math.min(PAPER_WIDTH, state.width) : state.width;
    if (!width) return;
    const layout = state.layout;
    view.marks = ticks(view.begin, view.end, width - layout.gutter, layout.wide ? 130 : 95);
    view.top = frame.scrollTop;
    sharp(canvas, width, state.height, (context, w, h, ratio) => painter.lanes(context, w, h, ratio, layout, view));
    sharp(whole, width, 42, (context, w, h) => painter.overview(context, w, h, layout, view));
  };
  const redraw = eachFrame(draw);

  function arrange() {
    state.layout = layOut(rows, timeline.groups, state.width, (lane) => state.streams === "all" || lane.computes);
    const most = Math.min(window.innerHeight * 0.82, 62 * parseFloat(getComputedStyle(document.documentElement).fontSize));
    state.height = Math.min(state.layout.height, Math.floor(most));
    tall.style.height = `${state.layout.height}px`;
    redraw();
  }

  // What part of it is seen.

  function settle(begin, end) {
    const span = Math.min(rows.whole, Math.max(LEAST_SPAN, end - begin));
    const from = Math.min(Math.max(0, begin), rows.whole - span);
    view.begin = from;
    view.end = from + span;
    redraw();
  }

  function show(begin, end, moved = true) {
    cancelAnimationFrame(state.motion);
    state.goal = null;
    if (!moved || theme.still.matches) {
      settle(begin, end);
      return;
    }
    const [from, to, start] = [view.begin, view.end, performance.now()];
    state.goal = { begin, end };
    const move = (now) => {
      const done = Math.min(1, (now - start) / 180);
      const eased = 1 - (1 - done) ** 3;
      // Spans shrink by equal factors in equal times; the begin follows so that its goal is met.
      const span = (to - from) * ((end - begin) / (to - from)) ** eased;
      const part = Math.abs(end - begin - (to - from)) < 1 ? eased : (span - (to - from)) / (end - begin - (to - from));
      settle(from + (begin - from) * part, from + (begin - from) * part + span);
      if (done < 1) state.motion = requestAnimationFrame(move);
      else {
        state.goal = null;
        settle(begin, end);
      }
    };
    state.motion = requestAnimationFrame(move);
  }

  /** What is seen once it has come to rest: keys pressed on the way there start from it. */
  const goal = () => state.goal ?? view;

  const perPixel = () => (view.end - view.begin) / Math.max(1, state.width - state.layout.gutter);
  const timeAt = (x) => view.begin + (x - state.layout.gutter) * perPixel();

  function laneAt(y) {
    const at = y + frame.scrollTop;
    return y < RULER ? undefined : state.layout.lanes.find((each) => at >= each.y - 1 && at <= each.y + each.height + 1);
  }

  function rowAt(x, y) {
    const found = x >= state.layout.gutter ? laneAt(y) : undefined;
    return found ? rows.rowAt(found.lane, timeAt(x), 4 * perPixel()) : -1;
  }

  /** Bring a row into what is seen, and to the front. */
  function select(row, { zoom = false, quiet = false } = {}) {
    view.selected = row;
    describe(row);
    if (row >= 0) {
      const number = rows.laneOf(row);
      if (!state.layout.lanes.some((each) => each.number === number)) {
        state.streams = streams.value = "all";
        arrange();
      }
      const place = state.layout.lanes.find((each) => each.number === number);
      if (place && (place.y < frame.scrollTop + RULER || place.y + place.height > frame.scrollTop + state.height)) {
        frame.scrollTop = place.y - state.height / 2;
      }
      const [begin, end] = [rows.begin[row], rows.begin[row] + rows.duration[row]];
      if (zoom) show(begin - 0.35 * (end - begin) - 500, end + 0.35 * (end - begin) + 500);
      else if (end < goal().begin || begin > goal().end) {
        const half = (goal().end - goal().begin) / 2;
        show((begin + end) / 2 - half, (begin + end) / 2 + half, !quiet);
      }
      announce(sentence(row));
    }
    redraw();
  }

  const act = {
    perPixel, timeAt,
    gutter: () => state.layout.gutter,
    show: (begin, end) => show(begin, end),
    reset: () => show(0, rows.whole),
    pan(by, share = false) {
      const { begin, end } = goal();
      const ps = share ? by * (end - begin) : by;
      const bounded = Math.max(-begin, Math.min(rows.whole - end, ps));
      show(begin + bounded, end + bounded, share);
    },
    /** Zoom about a time, or about the chosen row, or the middle. Whether there was room to. */
    zoom(factor, about, moved = true) {
      const { begin, end } = goal();
      const span = end - begin;
      if (factor > 1 && span >= rows.whole) return false;
      const row = view.selected;
      const middle = row >= 0 ? rows.begin[row] + rows.duration[row] / 2 : (begin + end) / 2;
      const at = about ?? (middle >= begin && middle <= end ? middle : (begin + end) / 2);
      const kept = Math.max(LEAST_SPAN / span, factor);
      show(at - (at - begin) * kept, at + (end - at) * kept, moved);
      return true;
    },
    pick: (x, y) => select(rowAt(x, y)),
    point(x, y) {
      const row = rowAt(x, y);
      if (row !== view.hovered) {
        view.hovered = row;
        redraw();
        tip.hidden = row < 0;
        if (row >= 0) fill(tip, make("b", {}, clipped(rows.names[rows.name[row]], 120)), brief(row));
      }
      if (row >= 0) {
        const right = x > state.width / 2;
        tip.style.left = right ? "auto" : `${x + 14}px`;
        tip.style.right = right ? `${state.width - x + 14}px` : "auto";
        tip.style.top = `${Math.max(4, Math.min(y + 16, state.height - 30))}px`;
      }
    },
    leave() {
      tip.hidden = true;
      if (view.hovered >= 0) {
        view.hovered = -1;
        redraw();
      }
    },
    step(by) {
      const row = view.selected;
      if (row < 0) {
        const first = state.layout.lanes[0]?.lane;
        if (first) select(Math.min(rows.firstAfter(first, view.begin), first.end - 1));
        return;
      }
      const lane = rows.lanes[rows.laneOf(row)];
      select(Math.max(lane.first, Math.min(lane.end - 1, row + by)));
    },
    lane(by) {
      if (view.selected < 0) {
        act.step(1);
        return;
      }
      const middle = rows.begin[view.selected] + rows.duration[view.selected] / 2;
      let at = state.layout.lanes.findIndex((each) => each.number === rows.laneOf(view.selected));
      for (at += by; at >= 0 && at < state.layout.lanes.length; at += by) {
        const { lane } = state.layout.lanes[at];
        if (lane.end === lane.first) continue;
        const before = Math.max(lane.first, rows.firstFrom(lane, middle) - 1);
        const near = rows.rowAt(lane, middle, 0);
        select(near >= 0 ? near : Math.min(before, lane.end - 1));
        return;
      }
    },
    edge(by) {
      const lane = view.selected >= 0 ? rows.lanes[rows.laneOf(view.selected)] : state.layout.lanes[0]?.lane;
      if (lane && lane.end > lane.first) select(by < 0 ? lane.first : lane.end - 1);
    },
    toSelected() {
      if (view.selected >= 0) select(view.selected, { zoom: true });
    },
    clear: () => select(-1),
  };

  // What is said of a row.

  const kindOf = (row) => rows.kinds[rows.kind[row]];
  function facts(row) {
    const moves = rows.duration[row] - rows.wait[row];
    const communicates = ["collective", "send", "recv"].includes(kindOf(row));
    const group = timeline.groups[rows.lanes[rows.laneOf(row)].group];
    const bytes = rows.bytes[row];
    return [
      ["Begin", time(rows.begin[row], 7)],
      ["Duration", time(rows.duration[row], 5)],
      communicates ? ["Waiting, then moving data", `${time(rows.wait[row])}, ${time(moves)}`] : null,
      ["Kind", kindOf(row)],
      ["Phase", rows.phases[rows.phase[row]] || null],
      ["Layer", rows.layer[row] >= 0 ? String(rows.layer[row]) : null],
      ["Micro-batch", rows.micro_batch[row] >= 0 ? String(rows.micro_batch[row]) : null],
      ["Bytes", bytes >= 0 ? `${size(bytes)}${bytes >= 1024 ? ` (${digits(bytes, 0)} B)` : ""}` : null],
      ["Bandwidth", bytes > 0 && moves > 0 && communicates ? rate((bytes * 1e12) / moves) : null],
      ["Communicator", rows.communicator[row] >= 0 ? rows.communicators[rows.communicator[row]] : null],
      ["GPU", `rank ${group.rank}, ${group.title}`],
      ["Stream", rows.lanes[rows.laneOf(row)].name],
    ].filter((each) => each && each[1] !== null && each[1] !== "none");
  }

  function brief(row) {
    const waits = rows.wait[row] > 0 ? `, of which ${time(rows.wait[row])} waiting` : "";
    const batch = rows.micro_batch[row] >= 0 ? `, micro-batch ${rows.micro_batch[row]}` : "";
    const layer = rows.layer[row] >= 0 ? `, layer ${rows.layer[row]}` : "";
    return `${time(rows.duration[row], 5)}${waits}${layer}${batch}`;
  }

  const sentence = (row) => `${rows.names[rows.name[row]]}: ${facts(row).map(([term, value]) => `${term} ${value}`).join(", ")}`;

  function describe(row) {
    if (row < 0) {
      panel.classList.add("onscreen");
      fill(panel, make("p.lead", {}, "Choose a row to see what it is: click it, or go there with the keys."),
        make("ul.shortcuts", {}, SHORTCUTS.map(([keys, what]) => make("li", {}, make("kbd", {}, keys), ` ${what}`))));
      return;
    }
    panel.classList.remove("onscreen");
    fill(panel, make("div.row.apart", {}, make("p.title.name", {}, shown(rows.names[rows.name[row]])),
      button("Zoom to it", () => act.toSelected(), { class: "onscreen" })), definitions("dl", facts(row)));
  }

  // Tools.

  const light = () => {
    const chosen = state.found?.rows ?? (state.path ? onPath : null);
    view.lit = chosen ? rows.byLane(chosen) : null;
    redraw();
  };
  const path = button("Critical path", () => {
    state.path = !state.path;
    path.setAttribute("aria-pressed", String(state.path));
    light();
  }, { "aria-pressed": "false", hidden: !onPath.length });
  const count = make("span.found", { role: "status" });
  const search = make("input", { type: "search", placeholder: "Search names", "aria-label": "Search rows by name" });
  const nextHit = (by) => {
    if (!state.found?.rows.length) return;
    const many = state.found.rows.length;
    state.at = state.at < 0 ? (by > 0 ? 0 : many - 1) : (state.at + by + many) % many;
    select(state.found.rows[state.at]);
    tellFound();
  };
  const hits = make("span.together", {}, button("‹", () => nextHit(-1), { "aria-label": "Previous match" }), button("›", () => nextHit(1), { "aria-label": "Next match" }));
  hits.hidden = true;
  function tellFound() {
    const { found, at } = state;
    hits.hidden = !found?.rows.length;
    fill(count, !found ? "" : !found.rows.length ? "no row of that name"
      : `${at >= 0 ? `${digits(at + 1, 0)} of ` : ""}${digits(found.rows.length, 0)} rows, ${time(found.total)}`);
  }
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      state.found = search.value.trim() ? rows.find(search.value) : null;
      state.at = -1;
      tellFound();
      light();
    }, 120);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
  });
  const picker = choice("Streams", [["all", "all"], ["compute", "compute"]], (value) => {
    state.streams = value;
    arrange();
  });
  const streams = picker.querySelector("select");
  streams.value = state.streams;
  picker.hidden = !rows.lanes.some((lane) => lane.computes) || rows.lanes.every((lane) => lane.computes);
  const tools = make("div.tools", { role: "toolbar", "aria-label": "Timeline" },
    make("span.together", {},
      button("−", () => act.zoom(1.6), { "aria-label": "Zoom out" }),
      button("+", () => act.zoom(1 / 1.6), { "aria-label": "Zoom in" }),
      button("Whole step", () => act.reset())),
    make("span.together", {},
      button("←", () => act.pan(-0.3, true), { "aria-label": "Move earlier" }),
      button("→", () => act.pan(0.3, true), { "aria-label": "Move later" })),
    path, picker, search, hits, count);

  // The strip of the whole step moves and chooses the span.
  whole.addEventListener("pointerdown", (event) => {
    whole.setPointerCapture(event.pointerId);
    const at = (move) => ((move.clientX - whole.getBoundingClientRect().left - state.layout.gutter) / (state.width - state.layout.gutter)) * rows.whole;
    const from = at(event);
    const span = view.end - view.begin;
    const marking = span >= 0.999 * rows.whole;
    const move = (each) => {
      if (marking) {
        if (Math.abs(at(each) - from) > 0.004 * rows.whole) settle(...[from, at(each)].sort((a, b) => a - b));
      } else settle(at(each) - span / 2, at(each) + span / 2);
    };
    move(event);
    whole.addEventListener("pointermove", move);
    whole.addEventListener("lostpointercapture", () => whole.removeEventListener("pointermove", move), { once: true });
  });

  listen(canvas, act, stage);
  canvas.addEventListener("focus", redraw);
  frame.addEventListener("scroll", redraw, { passive: true });
  window.addEventListener("resize", () => state.width && arrange());
  theme.changed.push(() => (theme.printing ? draw() : redraw()));
  onWidth(frame, (width) => {
    state.width = width;
    arrange();
    draw(); // now, not a frame later: the first picture is part of opening the page
  });
  describe(-1);

  const legend = make("ul.legend", { "aria-label": "Colours" }, rows.categories.slice(0, rows.colours).map((each) => make("li", {}, swatch(each.paint, each.hatched), each.label)),
    rows.wait.some((each) => each > 0) ? make("li", {}, swatch("collective", true), "waiting for others") : null);
  return {
    element: make("div", {}, tools, stage, make("div.stack", {}, make("p.note", {}, timeline.cut || ""), legend), panel, said),
    view, rows,
    showRow(row) {
      canvas.focus({ preventScroll: true });
      stage.scrollIntoView({ block: "center", behavior: theme.still.matches ? "auto" : "smooth" });
      select(row, { zoom: true });
    },
    showSpan(begin, end) {
      stage.scrollIntoView({ block: "center", behavior: theme.still.matches ? "auto" : "smooth" });
      show(begin - 0.5 * (end - begin), end + 0.5 * (end - begin));
    },
  };
}
