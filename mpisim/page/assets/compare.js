// Two runs: which is faster, and where the difference comes from.

function compareTop(compare) {
  const { a_ps: a, b_ps: b } = compare;
  const by = b / a - 1;
  // Both in the unit in which the shorter one is written alone.
  const [factor, unit] = unitOf(Math.min(a, b), TIME_UNITS);
  const write = (ps) => digits(ps / factor, decimalsOf(Math.min(a, b) / factor, 6));
  const figure = (letter, name, ps, error) =>
    make(
      "div.figure",
      {},
      make("p.which.name", {}, `${letter}: ${clipped(name, 160)}`),
      make("b", {}, write(ps), make("small", {}, ` ${unit}`)),
      error ? make("p.error", {}, error) : null,
    );
  const verdict = by < 0 ? "less time" : by > 0 ? "more time" : "as long";
  return make(
    "div.versus",
    {},
    figure("A", compare.a, a, compare.a_error),
    figure("B", compare.b, b, compare.b_error),
    make(
      "div.figure",
      {},
      make("p.which", {}, "B beside A"),
      make(by < 0 ? "b.better" : by > 0 ? "b.worse" : "b", {}, change(by, 2)),
      make("span.name", {}, compare.verdict || (by === 0 ? verdict : `${time(Math.abs(b - a))} ${verdict}`)),
    ),
  );
}

function compareSection(compare) {
  return make(
    "div.stack",
    {},
    compare.lists.map((list) => differences(list)),
  );
}

/** A list of what both runs have, with bars to the left for what B does in less time. */
function differences(list) {
  const { rows } = list;
  const most = Math.max(1, ...rows.map((row) => Math.abs(row[3])));
  const like = ["a", "b", "difference"];
  const draw = (i) => {
    const value = rows[i][3];
    const arm = make("i.arm", { "aria-hidden": "true" });
    paint(arm, value < 0 ? "backward" : "p2p");
    arm.style.width = `${(50 * Math.abs(value)) / most}%`;
    arm.style[value < 0 ? "right" : "left"] = "50%";
    return make("span.swing", {}, arm);
  };
  return makeTable({
    title: list.title,
    note: list.note,
    columns: [
      { key: "name", title: "Part", type: "text" },
      { key: "a", title: "A", type: "time", like },
      { key: "b", title: "B", type: "time", like },
      { key: "index", title: "less ← B → more", type: "text", draw, fixed: true },
      { key: "difference", title: "B − A", type: "time", like },
    ],
    data: {
      name: rows.map((row) => row[0]),
      a: rows.map((row) => row[1]),
      b: rows.map((row) => row[2]),
      index: rows.map((_, i) => i),
      difference: rows.map((row) => row[3]),
    },
  });
}

function keysTable(compare) {
  return makeTable(
    {
      title: "Keys that differ",
      columns: [
        { key: "key", title: "Key", type: "text" },
        { key: "a", title: "A", type: "text" },
        { key: "b", title: "B", type: "text" },
      ],
      data: {
        key: compare.keys.map((row) => row[0]),
        a: compare.keys.map((row) => String(row[1] ?? MISSING)),
        b: compare.keys.map((row) => String(row[2] ?? MISSING)),
      },
    },
    { bare: true },
  );
}
