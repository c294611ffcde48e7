// Tables of any length: sorted by a press on a heading, filtered by a text, shown page by page.

const ROWS_A_PAGE = 20;
const ROWS_ON_PAPER = 50;

/**
 * @param {object} table  columns [{key, title, type, help, draw, like, bar, fixed}], data {key: values}, title, note.
 *   `draw(value, row)` returns an element in place of a text; `like`: keys of the columns that have
 *   the same unit; `bar`: the value of a whole bar;
 *   `fixed`: it cannot be sorted by; types are those of the payload.
 * @param {object} options  caption (for screen readers), order ([key, "descending"] at first), bare (no heading of its own)
 */
function makeTable(table, options = {}) {
  const { columns, data } = table;
  const caption = clipped(options.caption ?? table.title, 200);
  const count = columns.length ? data[columns[0].key].length : 0;
  const formats = new Map(
    columns.map((each) => [
      each.key,
      columnFormat(
        each.type,
        (each.like ?? [each.key]).flatMap((key) => Array.from(data[key])),
      ),
    ]),
  );
  const state = {
    order: options.order ?? null,
    words: "",
    page: 0,
    rows: Uint32Array.from({ length: count }, (_, i) => i),
  };
  const texts = new Map(); // lower-case texts of columns, made when something is first looked for

  const status = make("span", { role: "status" });
  const body = make("tbody");
  const headings = columns.map((column) => heading(column));
  const box = make(
    "div.scroll",
    { tabindex: "0", role: "region", "aria-label": `Table: ${caption}` },
    make("table", {}, make("caption.unseen", {}, caption), make("thead", {}, make("tr", {}, headings)), body),
  );
  const filter = make("input.filter", {
    type: "search",
    placeholder: "Filter rows",
    "aria-label": `Filter rows of ${caption}`,
  });
  const earlier = button("Previous", () => turn(-1));
  const later = button("Next", () => turn(1));
  const pager = make("div.pager", {}, earlier, later, status);
  const paper = make("p.note.onpaper");

  function heading(column) {
    const { unit } = formats.get(column.key);
    const title = clipped(column.title, 60) + (unit ? `, ${unit}` : "");
    const kind = `th${column.type === "text" ? "" : ".num"}${column.key === "show" ? ".fixed" : ""}`;
    const cell = make(kind, { scope: "col", title: column.help || null });
    if (count < 2 || column.fixed) cell.append(make("span", {}, title));
    // Browsers do not repeat buttons at the top of each sheet of paper, but they do repeat texts.
    else
      cell.append(
        button(title, () => sortBy(column), { class: "onscreen" }),
        make("span.onpaper", {}, title),
      );
    return cell;
  }

  function sortBy(column) {
    const first = column.type === "text" ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const again = state.order?.[0] === column.key && state.order[1] === first;
    state.order = [column.key, again ? other : first];
    state.page = 0;
    arrange();
  }

  function turn(by) {
    state.page += by;
    draw();
  }

  /** Whether a row has the words in one of its texts, or a number that begins with them. */
  function has(row, words) {
    return columns.some((column) => {
      if (column.type === "text") {
        if (!texts.has(column.key))
          texts.set(
            column.key,
            Array.from(data[column.key], (each) => shown(each).toLowerCase()),
          );
        return texts.get(column.key)[row].includes(words);
      }
      return column.type === "number" && String(data[column.key][row]).startsWith(words);
    });
  }

  function arrange() {
    let rows = Array.from({ length: count }, (_, i) => i);
    if (state.words) rows = rows.filter((row) => has(row, state.words));
    if (state.order) {
      const [key, way] = state.order;
      const values = data[key];
      const sign = way === "ascending" ? 1 : -1;
      const missing = (value) => value === null || value === undefined || Number.isNaN(value);
      const text = columns.find((each) => each.key === key).type === "text";
      const collator = text ? new Intl.Collator("en", { numeric: true }) : null;
      rows.sort((a, b) => {
        const [x, y] = [values[a], values[b]];
        if (missing(x) || missing(y)) return missing(x) - missing(y) || a - b; // last either way
        return sign * (text ? collator.compare(x, y) : x - y) || a - b;
      });
    }
    state.rows = rows;
    draw();
  }

  function draw() {
    const { rows } = state;
    const pages = Math.max(1, Math.ceil(rows.length / ROWS_A_PAGE));
    const all = rows.length <= 1.5 * ROWS_A_PAGE;
    state.page = Math.max(0, Math.min(state.page, pages - 1));
    const from = all || theme.printing ? 0 : state.page * ROWS_A_PAGE;
    const to = theme.printing
      ? Math.min(rows.length, ROWS_ON_PAPER)
      : all
        ? rows.length
        : Math.min(rows.length, from + ROWS_A_PAGE);
    body.replaceChildren(...Array.from(rows.slice(from, to), line));
    if (!rows.length)
      body.append(make("tr", {}, make("td", { colspan: columns.length }, `Nothing has “${state.words}”.`)));
    columns.forEach((column, i) => {
      const sorted = state.order?.[0] === column.key;
      if (sorted) headings[i].setAttribute("aria-sort", state.order[1]);
      else headings[i].removeAttribute("aria-sort");
    });
    earlier.disabled = state.page === 0;
    later.disabled = state.page >= pages - 1;
    earlier.hidden = later.hidden = all;
    fill(
      status,
      all
        ? state.words
          ? `${digits(rows.length, 0)} of ${digits(count, 0)} rows`
          : ""
        : `${digits(from + 1, 0)} to ${digits(to, 0)} of ${digits(rows.length, 0)}`,
    );
    pager.hidden = all && !state.words;
    fill(
      paper,
      to < rows.length
        ? `The first ${to} of ${digits(rows.length, 0)} rows; the page itself has all of them.`
        : "",
    );
  }

  function line(row) {
    return make(
      "tr",
      {},
      columns.map((column, i) => {
        const value = data[column.key][row];
        if (column.draw) return make(column.type === "text" ? "td" : "td.num", {}, column.draw(value, row));
        const text = formats.get(column.key).write(value);
        if (column.type === "text")
          return make(i === 0 ? "th" : "td.text", i === 0 ? { scope: "row" } : {}, clipped(text, 400));
        const cell = make("td.num");
        if (column.bar && Number.isFinite(value))
          cell.append(cellBar(value / column.bar), make("span.amount", {}, text));
        else cell.append(text);
        return cell;
      }),
    );
  }

  filter.addEventListener("input", () => {
    state.words = filter.value.trim().toLowerCase();
    state.page = 0;
    arrange();
  });
  theme.changed.push(() => draw());
  arrange();
  const wanted = count > 8 && columns.some((each) => each.type === "text" || each.type === "number");
  return make(
    "div.tablebox.stack",
    {},
    options.bare && !wanted
      ? null
      : make(
          "div.row.apart",
          {},
          options.bare ? make("span") : make("h3.name", {}, clipped(table.title, 200)),
          wanted ? filter : null,
        ),
    box,
    pager,
    paper,
    table.note ? make("p.note", {}, table.note) : null,
  );
}

/** A short bar before a figure. */
function cellBar(share) {
  const inner = make("i");
  inner.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  return make("span.cellbar", { "aria-hidden": "true" }, inner);
}

/** Tables whose times are parts of one whole, and written in one unit. */
const OF_ONE_WHOLE = ["ranks", "stages"];

/** A table of the payload, with a bar in its first column of shares. */
function payloadTable(table, options) {
  const share = table.columns.find((each) => each.type === "percent");
  const times = table.columns.filter((each) => each.type === "time").map((each) => each.key);
  const columns = table.columns.map((each) => {
    if (each.type === "time" && OF_ONE_WHOLE.includes(table.id)) return { ...each, like: times };
    if (each !== share) return each;
    let most = 0;
    for (const value of table.data[each.key]) most = Math.max(most, value ?? 0);
    return most > 0 ? { ...each, bar: most > 0.5 ? 1 : most } : each;
  });
  return makeTable({ ...table, columns }, options);
}
