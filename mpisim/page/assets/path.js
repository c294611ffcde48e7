// The critical path: of what it is made, and its pieces one by one.

/** @param {HTMLElement} byName  table of the payload */
function pathSection(path, whole, timeline, byName) {
  const list = (title, rows, more) =>
    rows?.length
      ? makeTable({
          title,
          columns: [
            { key: "name", title: more, type: "text" },
            { key: "ps", title: "Time", type: "time" },
            {
              key: "share",
              title: "Share",
              type: "percent",
              bar: Math.max(...rows.map((row) => row[1])) / whole,
            },
            { key: "pieces", title: "Pieces", type: "number" },
          ],
          data: {
            name: rows.map((row) => row[0]),
            ps: rows.map((row) => row[1]),
            share: rows.map((row) => row[1] / whole),
            pieces: rows.map((row) => row[2]),
          },
        })
      : null;
  return make(
    "div.stack",
    {},
    make(
      "div.two",
      {},
      make("div.stack", {}, list("By kind", path.by_kind, "Kind"), list("By rank", path.by_rank, "Rank")),
      byName,
    ),
    piecesTable(path, timeline),
  );
}

/** Every piece, in the order of time, with a button that shows it in the timeline. */
function piecesTable(path, timeline) {
  const { pieces } = path;
  if (!pieces?.begin?.length) return null;
  const count = pieces.begin.length;
  const numbers = Array.from({ length: count }, (_, i) => i);
  const columns = [
    { key: "begin", title: "Begin", type: "time" },
    { key: "duration", title: "Time", type: "time" },
    { key: "name", title: "Name", type: "text" },
    { key: "kind", title: "Kind", type: "text" },
    { key: "rank", title: "Rank", type: "number" },
  ];
  if (timeline) {
    columns.push({
      key: "show",
      title: "Timeline",
      type: "text",
      fixed: true,
      draw: (i) =>
        button(
          "Show",
          () =>
            pieces.row?.[i] >= 0
              ? timeline.showRow(pieces.row[i])
              : timeline.showSpan(pieces.begin[i], pieces.end[i]),
          {
            "aria-label": `Show piece ${i + 1}, ${clipped(path.names[pieces.name[i]], 60)}, in the timeline`,
          },
        ),
    });
  }
  return makeTable(
    {
      title: "Pieces",
      note: path.cut || "One after another they are the step: each begins where the one before ends.",
      columns,
      data: {
        begin: pieces.begin,
        rank: pieces.rank,
        show: numbers,
        duration: pieces.end.map((end, i) => end - pieces.begin[i]),
        name: numbers.map((i) => path.names[pieces.name[i]]),
        kind: numbers.map((i) => path.kinds[pieces.kind[i]]),
      },
    },
    { caption: "Pieces of the critical path" },
  );
}
