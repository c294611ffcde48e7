// What the step would gain or lose: a tornado of changes by ten per cent.

function sensitivitiesSection(sensitivities) {
  const rows = sensitivities.rows.map((row) => ({
    ...row,
    less: row.minus10,
    more: row.plus10,
  }));
  const reach = (row) => Math.max(Math.abs(row.less), Math.abs(row.more));
  rows.sort((a, b) => reach(b) - reach(a));
  const most = Math.max(1e-9, ...rows.map(reach));
  const arm = (value, paintName) => {
    const element = make("i.arm", { "aria-hidden": "true" });
    paint(element, paintName);
    element.style.width = `${(50 * Math.abs(value)) / most}%`;
    element.style[value < 0 ? "right" : "left"] = "50%";
    return element;
  };
  const draw = (i) =>
    make(
      "span.swing",
      {},
      arm(rows[i].less, "forward"),
      arm(rows[i].more, "collective"),
    );
  const column = (key) => rows.map((row) => row[key] ?? null);
  const bare = rows.some((row) => row.now !== null && row.now !== undefined && row.now !== "");
  const changes = (key, title, help) => ({
    key,
    title,
    type: "number",
    help,
    draw: (value) => change(value, 2),
  });
  return make(
    "div.stack",
    {},
    make(
      "ul.legend",
      {},
      make("li", {}, swatch("forward"), "10 % less"),
      make("li", {}, swatch("collective"), "10 % more"),
    ),
    makeTable(
      {
        title: "Change of the step",
        note: sensitivities.note,
        columns: [
          { key: "name", title: "What", type: "text" },
          ...(rows.some((row) => row.key) ? [{ key: "key", title: "Key", type: "text" }] : []),
          ...(bare ? [{ key: "now", title: "Now", type: "text" }] : []),
          { key: "index", title: "shorter ← step → longer", type: "text", draw, fixed: true },
          changes("less", "10 % less"),
          changes("more", "10 % more"),
          ...(rows.some((row) => Number.isFinite(row.double)) ? [changes("double", "Doubled")] : []),
          {
            key: "elasticity",
            title: "Elasticity",
            type: "number",
            draw: (value) => digits(value, 3),
            help: "relative change of the step for a relative change of this",
          },
        ],
        data: {
          name: column("name"),
          key: column("key"),
          now: column("now"),
          index: rows.map((_, i) => i),
          less: column("less"),
          more: column("more"),
          double: column("double"),
          elasticity: column("elasticity"),
        },
      },
      { bare: true, caption: "Sensitivities" },
    ),
  );
}
