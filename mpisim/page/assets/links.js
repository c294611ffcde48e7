// How busy links are: a row a link, a column a hundredth of the step.

const LINKS_AT_FIRST = 24;
const LINK_HEIGHT = 20;

function linksSection(links, whole) {
  const canvas = make("canvas", {
    role: "img",
    tabindex: "0",
    "aria-label": `Utilisation of ${links.names.length} links over the step; the table below has the same in figures. Arrows move from cell to cell.`,
  });
  const holder = make("div.heat", {}, canvas);
  const readout = make("p.readout", { "aria-live": "polite" }, "Point at a cell to see its link and time.");
  const state = { all: links.names.length <= LINKS_AT_FIRST * 1.5, row: -1, bin: 0, width: 0 };
  const { bins, utilisation } = links;
  const shownRows = () => (state.all ? links.names.length : LINKS_AT_FIRST);
  const gutter = () => (state.width > 640 ? Math.min(320, state.width * 0.3) : 0);
  const headed = () => (gutter() ? 0 : 15);
  const mean = (row) =>
    sum(
      utilisation.subarray
        ? utilisation.subarray(row * bins, (row + 1) * bins)
        : utilisation.slice(row * bins, (row + 1) * bins),
    ) / bins;
  const peak = (row) => Math.max(...utilisation.slice(row * bins, (row + 1) * bins));

  function colour(share) {
    const [from, to] = [rgb("sunken"), rgb("accent")];
    // Small shares must be seen, too: half of the ramp is used up by the first quarter.
    const part = Math.sqrt(Math.max(0, Math.min(1, share)));
    return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * part)).join(" ")})`;
  }

  function draw() {
    const width = theme.printing ? Math.min(PAPER_WIDTH, state.width) : state.width;
    if (!width) return;
    const tall = LINK_HEIGHT + headed();
    sharp(canvas, width, shownRows() * tall + 26, (context) => {
      const left = gutter();
      const cell = (width - left) / bins;
      context.textBaseline = "middle";
      for (let row = 0; row < shownRows(); row++) {
        const y = row * tall + headed();
        context.fillStyle = ink("soft");
        context.font = `11.5px ${SANS}`;
        const many = links.counts[row] > 1 ? ` × ${digits(links.counts[row], 0)}` : "";
        if (left) context.fillText(fit(context, links.names[row] + many, left - 14), 0, y + LINK_HEIGHT / 2);
        else context.fillText(fit(context, links.names[row] + many, width), 0, y - 7);
        for (let bin = 0; bin < bins; bin++) {
          context.fillStyle = colour(utilisation[row * bins + bin]);
          const x = Math.round(left + bin * cell);
          context.fillRect(x, y, Math.round(left + (bin + 1) * cell) - x, LINK_HEIGHT - 2);
        }
      }
      context.fillStyle = ink("soft");
      context.font = `11.5px ${SANS}`;
      for (const [ps, text] of ticks(0, whole, width - left, 120)) {
        const x = left + (ps / whole) * (width - left);
        if (x + context.measureText(text).width < width) context.fillText(text, x, shownRows() * tall + 12);
      }
      if (state.row >= 0 && state.row < shownRows()) {
        context.strokeStyle = ink("ink");
        context.lineWidth = 2;
        context.strokeRect(left + state.bin * cell, state.row * tall + headed(), cell, LINK_HEIGHT - 2);
      }
    });
  }

  function point(row, bin) {
    if (row < 0 || row >= shownRows() || bin < 0 || bin >= bins || (row === state.row && bin === state.bin))
      return;
    Object.assign(state, { row, bin });
    draw();
    fill(
      readout,
      `${clipped(links.names[row], 120)}: ${percent(utilisation[row * bins + bin])} of ` +
        `${rate(links.capacity[row])} from ${time((bin / bins) * whole)} to ${time(((bin + 1) / bins) * whole)}`,
    );
  }

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = pointed(event, canvas);
    point(
      Math.floor(y / (LINK_HEIGHT + headed())),
      Math.floor(((x - gutter()) / (state.width - gutter())) * bins),
    );
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!by) return;
    point(Math.max(0, state.row + by[0]), state.bin + by[1]);
    event.preventDefault();
  });
  onWidth(holder, (width) => {
    state.width = width;
    draw();
  });
  theme.changed.push(draw);
  const more = button(`Show all ${links.names.length} links`, () => {
    state.all = true;
    more.hidden = true;
    draw();
  });
  more.hidden = state.all;
  more.classList.add("onscreen");
  const numbers = links.names.map((_, i) => i);
  const ramp = make("canvas.ramp", { "aria-hidden": "true", width: "64", height: "1" });
  const drawRamp = () => {
    const context = ramp.getContext("2d");
    for (let x = 0; x < 64; x++) {
      context.fillStyle = colour(x / 63);
      context.fillRect(x, 0, 1, 1);
    }
  };
  theme.changed.push(drawRamp);
  drawRamp();
  return make(
    "div.stack",
    {},
    make(
      "div.card.stack",
      {},
      make("div.row", {}, make("span", {}, "0 %"), ramp, make("span", {}, "100 % of the capacity")),
      holder,
      readout,
      more,
    ),
    makeTable({
      title: "Each link",
      note: links.note,
      columns: [
        { key: "name", title: "Link", type: "text" },
        { key: "level", title: "Level", type: "text" },
        { key: "count", title: "Alike", type: "number", help: "links that are used alike" },
        { key: "capacity", title: "Capacity", type: "rate" },
        {
          key: "busy",
          title: "Busy",
          type: "percent",
          help: "share of the step in which it carries something",
        },
        { key: "mean", title: "Mean use", type: "percent" },
        { key: "peak", title: "Highest use", type: "percent", help: "of a hundredth of the step" },
      ],
      data: {
        name: links.names,
        level: links.levels,
        count: links.counts,
        capacity: links.capacity,
        busy: links.busy,
        mean: numbers.map(mean),
        peak: numbers.map(peak),
      },
    }),
  );
}
