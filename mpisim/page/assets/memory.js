// Memory over the step: its parts one on another, below the capacity. Drawn by uPlot.

const PAINTS_OF_OTHERS = ["copy", "p2p", "host", "recompute", "waiting", "idle"];

/** Names of parts → the colour of each: that of the phase which makes or uses it, or one that is left. */
function paintsOfMemory(parts) {
  let others = 0;
  const used = new Set();
  return parts.map(({ name }) => {
    const paint = [
      [/param|weight/i, "forward"],
      [/grad/i, "backward"],
      [/optim/i, "optimizer"],
      [/activ/i, "collective"],
    ].find(([words]) => words.test(name))?.[1];
    if (!paint || used.has(paint)) return PAINTS_OF_OTHERS[others++ % PAINTS_OF_OTHERS.length];
    used.add(paint);
    return paint;
  });
}

function memorySection(memory) {
  const holder = make("div.chart");
  const keys = make("ul.keys");
  const where = make("h3");
  const state = { group: 0, plot: null, at: -1 };
  const totals = memory.groups.map((group) =>
    group.times.length
      ? Array.from(group.times, (_, t) => sum(group.parts.map((part) => part.bytes[t])))
      : [],
  );

  function tell() {
    const group = memory.groups[state.group];
    const total = totals[state.group];
    const peak = total.indexOf(Math.max(...total));
    const t = state.at >= 0 && state.at < total.length ? state.at : peak;
    fill(
      where,
      `${clipped(group.title, 60)} at ${time(group.times[t])}: ${size(total[t])}${t === peak ? ", its most" : ""}` +
        (memory.capacity ? `; ${size(memory.capacity - total[t])} of ${size(memory.capacity)} free` : ""),
    );
    const paints = paintsOfMemory(group.parts);
    fill(
      keys,
      group.parts
        .map((part, i) => {
          const line = make(
            "li.row",
            {},
            swatch(paints[i]),
            make("span.name", {}, clipped(part.name, 60)),
            make("strong", {}, size(part.bytes[t])),
          );
          return line;
        })
        .reverse(),
    );
  }

  function draw(width) {
    state.plot?.destroy();
    const group = memory.groups[state.group];
    const paints = paintsOfMemory(group.parts);
    const seconds = Array.from(group.times, (ps) => ps / 1e12);
    const sums = [];
    group.parts.forEach((part, i) =>
      sums.push(Array.from(part.bytes, (bytes, t) => bytes + (sums[i - 1]?.[t] ?? 0))),
    );
    const stepped = uPlot.paths.stepped({ align: 1 });
    // The highest sum first, so that each lower one is painted over it.
    const order = group.parts.map((_, i) => i).reverse();
    const highest = Math.max(memory.capacity || 0, ...totals[state.group]) * 1.04;
    // uPlot takes whole pixels alone.
    const axis = {
      stroke: ink("soft"),
      font: `${Math.round(11.5 * grown())}px ${SANS}`,
      grid: { stroke: ink("line"), width: 1 },
      ticks: { show: false },
    };
    const gib = (value) => size(value, 2);
    state.plot = new uPlot(
      {
        width,
        height: Math.round(Math.max(240, Math.min(380 * grown(), width * 0.34))),
        legend: { show: false },
        padding: [12, 28, 0, 0],
        cursor: { points: { show: false }, drag: { x: false, y: false } },
        scales: {
          x: { time: false, range: () => [0, seconds[seconds.length - 1] || 1] },
          y: { range: [0, highest] },
        },
        axes: [
          {
            ...axis,
            values: (_, marks) => marks.map((value) => time(value * 1e12, 3)),
            space: 80,
            size: 34 * grown(),
          },
          {
            ...axis,
            size: 70 * grown(),
            values: (_, marks) => marks.map(gib),
            splits: () => spacing(highest),
          },
        ],
        series: [
          {},
          ...order.map((i) => {
            return {
              paths: stepped,
              stroke: ink("surface"),
              width: 1,
              fill: ink(paints[i]),
              points: { show: false },
            };
          }),
          { stroke: ink("ink"), width: 1.5, dash: [6, 5], points: { show: false } },
        ],
        hooks: {
          setCursor: [
            (plot) => {
              state.at = plot.cursor.idx ?? -1;
              tell();
            },
          ],
          draw: [(plot) => label(plot, memory.capacity)],
        },
      },
      [seconds, ...order.map((i) => sums[i]), seconds.map(() => memory.capacity || null)],
      holder,
    );
  }

  const redraw = () => {
    const width = theme.printing ? Math.min(PAPER_WIDTH, holder.clientWidth) : holder.clientWidth;
    if (width > 0) draw(width);
    tell();
  };
  const picker =
    memory.groups.length > 1
      ? choice(
          "GPUs of",
          memory.groups.map((group, i) => [i, group.title]),
          (value) => {
            Object.assign(state, { group: Number(value), at: -1 });
            redraw();
          },
        )
      : null;
  theme.changed.push(redraw);
  onWidth(holder, redraw);
  tell();
  return make(
    "div.card.stack",
    {},
    picker,
    holder,
    where,
    keys,
    make("p.note", {}, memory.note || ""),
    memoryTable(memory, totals),
  );
}

/** The same in figures: the most of every part, group by group. */
function memoryTable(memory, totals) {
  const parts = [...new Set(memory.groups.flatMap((group) => group.parts.map((part) => part.name)))];
  const peaks = totals.map((total) => total.indexOf(Math.max(...total)));
  const of = (group, g, name) => group.parts.find((part) => part.name === name)?.bytes[peaks[g]] ?? null;
  return make(
    "details",
    {},
    make("summary", {}, "As a table"),
    makeTable(
      {
        title: "When most is held",
        columns: [
          { key: "group", title: "GPUs", type: "text" },
          { key: "total", title: "Total", type: "bytes" },
          ...parts.map((name, i) => ({ key: `part${i}`, title: clipped(name, 40), type: "bytes" })),
        ],
        data: {
          group: memory.groups.map((group) => group.title),
          total: totals.map((total, g) => total[peaks[g]]),
          ...Object.fromEntries(
            parts.map((name, i) => [`part${i}`, memory.groups.map((group, g) => of(group, g, name))]),
          ),
        },
      },
      { caption: "Memory when most is held" },
    ),
  );
}

/** Marks of an axis of bytes: powers of two apart, five to nine of them. */
function spacing(highest) {
  let step = 1;
  while (highest / step > 9) step *= 2;
  return Array.from({ length: Math.floor(highest / step) + 1 }, (_, i) => i * step);
}

function label(plot, capacity) {
  if (!capacity) return;
  const ratio = window.devicePixelRatio || 1;
  const { ctx } = plot;
  ctx.save();
  ctx.fillStyle = ink("ink");
  ctx.font = `${11.5 * ratio * grown()}px ${SANS}`;
  ctx.textAlign = "right";
  ctx.textBaseline = "top";
  ctx.fillText(
    `capacity ${size(capacity)}`,
    plot.bbox.left + plot.bbox.width - 6 * ratio,
    plot.valToPos(capacity, "y", true) + 5 * ratio,
  );
  ctx.restore();
}
