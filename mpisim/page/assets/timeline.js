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
  const words = new RowWords(timeline, rows);
  const pieces = payload.path?.pieces;
  const onPath = pieces?.row?.length ? pieces.row.filter((row) => row >= 0) : [];
  const view = {
    begin: 0,
    // Where most is left out, what comes before it is looked at first.
    end: rows.hole && rows.hole[1] - rows.hole[0] > 0.5 * rows.whole ? rows.hole[0] : rows.whole,
    top: 0,
    selected: -1,
    hovered: -1,
    lit: null,
    groups: timeline.groups,
    marks: [],
  };
  const state = {
    streams: rows.lanes.length > LANES_AT_FIRST ? "compute" : "all",
    layout: null,
    width: 0,
    height: 0,
    motion: 0,
    goal: null,
  };

  const said = make("div.unseen", { "aria-live": "polite", "data-role": "said" });
  const announce = announcer(said);
  const panel = make("div.card.panel", { "data-role": "row" });
  const canvas = make("canvas.lanes", {
    tabindex: "0",
    role: "application",
    "aria-roledescription": "timeline",
    "aria-label":
      "Timeline of the step. W and S zoom, A and D move, full stop and comma go from row to row, up and down from lane to lane.",
  });
  const overview = new TimelineOverview(rows, view, (begin, end) => settle(begin, end));
  const tall = make("div.tall", {}, canvas);
  const frame = make("div.window", {}, tall);
  const tip = make("div.tip", { hidden: true, "aria-hidden": "true" });
  const stage = make("div.stage", {}, frame, overview.canvas, tip);

  const scrolled = () => frame.scrollTop / grown();

  // What is drawn.

  const draw = () => {
    const width = theme.printing ? Math.min(PAPER_WIDTH, state.width) : state.width;
    if (!width) return;
    const layout = state.layout;
    view.marks = ticks(view.begin, view.end, width - layout.gutter, layout.wide ? 130 : 95);
    view.top = scrolled();
    sharp(canvas, width, state.height, (context, w, h, ratio) =>
      painter.lanes(context, w, h, ratio, layout, view),
    );
    overview.draw(width, layout);
  };
  const redraw = eachFrame(draw);

  function arrange() {
    state.layout = layOut(
      rows,
      timeline.groups,
      state.width,
      (lane) => state.streams === "all" || lane.computes,
    );
    const most = Math.min((window.innerHeight * 0.82) / grown(), 992);
    state.height = Math.min(state.layout.height, Math.floor(most));
    tall.style.height = `${state.layout.height * grown()}px`;
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
      const part =
        Math.abs(end - begin - (to - from)) < 1 ? eased : (span - (to - from)) / (end - begin - (to - from));
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
    const at = y + scrolled();
    return y < RULER
      ? undefined
      : state.layout.lanes.find((each) => at >= each.y - 1 && at <= each.y + each.height + 1);
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
        state.streams = "all";
        tools.showStreams("all");
        arrange();
      }
      const place = state.layout.lanes.find((each) => each.number === number);
      if (place && (place.y < scrolled() + RULER || place.y + place.height > scrolled() + state.height)) {
        frame.scrollTop = (place.y - state.height / 2) * grown();
      }
      const [begin, end] = [rows.begin[row], rows.begin[row] + rows.duration[row]];
      if (zoom) show(begin - 0.35 * (end - begin) - 500, end + 0.35 * (end - begin) + 500);
      else if (end < goal().begin || begin > goal().end) {
        const half = (goal().end - goal().begin) / 2;
        show((begin + end) / 2 - half, (begin + end) / 2 + half, !quiet);
      }
      announce(words.sentence(row));
    }
    redraw();
  }

  const act = {
    perPixel,
    timeAt,
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
        if (row >= 0) fill(tip, make("b", {}, clipped(words.name(row), 120)), words.brief(row));
      }
      if (row >= 0) {
        const right = x > state.width / 2;
        tip.style.left = right ? "auto" : `${(x + 14) * grown()}px`;
        tip.style.right = right ? `${(state.width - x + 14) * grown()}px` : "auto";
        tip.style.top = `${Math.max(4, Math.min(y + 16, state.height - 30)) * grown()}px`;
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

  function describe(row) {
    if (row < 0) {
      panel.classList.add("onscreen");
      fill(
        panel,
        make("p.lead", {}, "Choose a row to see what it is: click it, or go there with the keys."),
        make(
          "ul.shortcuts",
          {},
          SHORTCUTS.map(([keys, what]) => make("li", {}, make("kbd", {}, keys), ` ${what}`)),
        ),
      );
      return;
    }
    panel.classList.remove("onscreen");
    fill(
      panel,
      make(
        "div.row.apart",
        {},
        make("p.title.name", {}, words.name(row)),
        button("Zoom to it", () => act.toSelected(), { class: "onscreen" }),
      ),
      definitions("dl", words.facts(row)),
    );
  }

  const tools = timelineTools(rows, onPath, act, {
    select: (row) => select(row),
    light(chosen) {
      view.lit = chosen ? rows.byLane(chosen) : null;
      redraw();
    },
    streams(which) {
      state.streams = which;
      arrange();
    },
  });
  tools.showStreams(state.streams);

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

  const legend = make(
    "ul.legend",
    { "aria-label": "Colours" },
    rows.categories
      .slice(0, rows.colours)
      .map((each) => make("li", {}, swatch(each.paint, each.hatched), each.label)),
    rows.wait.some((each) => each > 0)
      ? make("li", {}, swatch("collective", true), "waiting for others")
      : null,
  );
  return {
    element: make(
      "div",
      {},
      tools.element,
      stage,
      make("div.stack", {}, make("p.note", {}, timeline.cut || ""), legend),
      panel,
      said,
    ),
    view,
    rows,
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
