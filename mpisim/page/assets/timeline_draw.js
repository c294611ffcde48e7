// How the timeline is painted: lanes of rows, or of bins where rows are narrower than a pixel.

const RULER = 26;
const GROUP_GAP = 9;
const SANS = '"Inter", system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const LEAST_FOR_NAME = 42;
const LEAST_FOR_BATCH = 13;

/** Where lanes lie, for a width and a choice of lanes: {gutter, headed, height, lanes: [{lane, number, y, height}]}. */
function layOut(rows, groups, width, shownLane) {
  const wide = width >= 720;
  const layout = {
    wide,
    gutter: wide ? Math.min(300, Math.max(244, width * 0.18)) : 0,
    lanes: [],
    heads: [],
    height: 0,
  };
  let y = RULER + 6;
  groups.forEach((group, g) => {
    const numbers = rows.lanes.flatMap((lane, n) => (lane.group === g && shownLane(lane, n) ? [n] : []));
    if (!numbers.length) return;
    const single = numbers.length === 1;
    if (!wide) y += 19;
    layout.heads.push({ group, y, single });
    for (const number of numbers) {
      const height = single ? 26 : 18;
      layout.lanes.push({ lane: rows.lanes[number], number, y, height });
      y += height + 2;
    }
    // Two lines of a title need room beside a single lane.
    y += single && wide ? 5 : GROUP_GAP;
  });
  layout.height = y + 4;
  return layout;
}

/** Stripes of a colour, for time spent waiting. */
function stripes(context, paint) {
  const tile = new OffscreenCanvas(6, 6);
  const on = tile.getContext("2d");
  on.fillStyle = ink(paint, 0.13);
  on.fillRect(0, 0, 6, 6);
  on.strokeStyle = ink(paint, 0.5);
  on.lineWidth = 1;
  on.beginPath();
  for (const shift of [-6, 0, 6]) {
    on.moveTo(shift - 1, 7);
    on.lineTo(shift + 7, -1);
  }
  on.stroke();
  return context.createPattern(tile, "repeat");
}

class TimelinePainter {
  constructor(rows) {
    this.rows = rows;
    this.strip = document.createElement("canvas");
    theme.changed.push(() => {
      this.patterns = this.missing = null;
    });
  }

  /** Paint all lanes that can be seen. `view` has begin, end, top, selected, hovered, lit. */
  lanes(context, width, height, ratio, layout, view) {
    const { gutter } = layout;
    this.missing ??= stripes(context, "host");
    this.patterns ??= this.rows.categories.map((each) => stripes(context, each.paint));
    const scale = (width - gutter) / (view.end - view.begin);
    const place = (ps) => gutter + (ps - view.begin) * scale;
    context.save();
    context.beginPath();
    context.rect(gutter, 0, width - gutter, height);
    context.clip();
    this.#grid(context, width, height, view, place);
    for (const each of layout.lanes) {
      const y = each.y - view.top;
      if (y + each.height < RULER || y > height) continue;
      context.fillStyle = ink("sunken");
      context.fillRect(gutter, y, width - gutter, each.height);
      this.#lane(context, width, ratio, layout, each, y, view, place);
    }
    this.#hole(context, width, height, view, place);
    context.restore();
    if (gutter) {
      context.fillStyle = ink("surface");
      context.fillRect(0, 0, gutter, height);
    }
    this.#titles(context, width, layout, view, height);
    this.#ruler(context, width, layout, view, place);
  }

  /** What is left out of the rows, so that nobody takes it for idle. */
  #hole(context, width, height, view, place) {
    if (!this.rows.hole) return;
    const [from, to] = this.rows.hole.map((ps) => Math.max(-10, Math.min(width + 10, place(ps))));
    if (to - from < 1) return;
    context.fillStyle = ink("surface");
    context.fillRect(from, RULER, to - from, height);
    context.fillStyle = this.missing;
    context.fillRect(from, RULER, to - from, height);
    const text = "left out";
    context.font = `600 12px ${SANS}`;
    if (context.measureText(text).width > to - from - 16) return;
    const middle = (Math.max(from, 0) + Math.min(to, width)) / 2;
    context.fillStyle = ink("surface");
    context.fillRect(middle - 40, RULER + 14, 80, 26);
    context.fillStyle = ink("soft");
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, middle, RULER + 27);
  }

  #grid(context, width, height, view, place) {
    context.fillStyle = ink("line", 0.8);
    for (const [ps] of view.marks) context.fillRect(Math.round(place(ps)), RULER, 1, height);
  }

  #ruler(context, width, layout, view, place) {
    context.fillStyle = ink("surface");
    context.fillRect(0, 0, width, RULER);
    context.fillStyle = ink("line");
    context.fillRect(0, RULER - 1, width, 1);
    context.font = `11.5px ${SANS}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const [ps, text] of view.marks) {
      const x = Math.round(place(ps));
      if (x < layout.gutter - 1 || x + 5 + context.measureText(text).width > width) continue;
      context.fillStyle = ink("line");
      context.fillRect(x, RULER - 8, 1, 8);
      context.fillStyle = ink("soft");
      context.fillText(text, x + 5, RULER / 2 - 1);
    }
  }

  #titles(context, width, layout, view, height) {
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const { group, y, single } of layout.heads) {
      const top = y - view.top;
      if (top < -400 || top > height + 20) continue;
      context.fillStyle = ink("ink");
      context.font = `600 12px ${SANS}`;
      const room = layout.wide ? (single ? layout.gutter - 20 : layout.gutter * 0.48) : width - 12;
      const title = fit(context, group.title, room);
      if (!layout.wide) {
        context.fillText(title, 6, top - 9);
        const used = context.measureText(title).width + 14;
        context.fillStyle = ink("soft");
        context.font = `11px ${SANS}`;
        context.fillText(fit(context, group.subtitle ?? "", width - used - 6), used, top - 9);
      } else if (single) {
        const used = context.measureText(title).width + 22;
        context.fillText(title, 12, top + 13);
        context.fillStyle = ink("soft");
        context.font = `11px ${SANS}`;
        context.fillText(fit(context, group.subtitle ?? "", layout.gutter - used - 10), used, top + 13);
      } else {
        context.fillText(title, 12, top + 9);
        context.fillStyle = ink("soft");
        context.font = `11px ${SANS}`;
        context.fillText(fit(context, group.subtitle ?? "", layout.gutter * 0.48 - 6), 12, top + 26);
      }
    }
    context.font = `11px ${SANS}`;
    const single = new Set(layout.heads.filter((each) => each.single).map((each) => each.group));
    for (const each of layout.lanes) {
      if (single.has(view.groups[each.lane.group])) continue;
      const y = each.y - view.top + each.height / 2;
      if (y < RULER - 9 || y > height + 9) continue;
      if (layout.wide) {
        context.textAlign = "right";
        context.fillStyle = ink("soft");
        context.fillText(fit(context, each.lane.name, layout.gutter * 0.5 - 8), layout.gutter - 10, y);
      }
    }
    context.textAlign = "left";
  }

  #lane(context, width, ratio, layout, { lane, number, height }, y, view, place) {
    const { rows } = this;
    const { gutter } = layout;
    const from = rows.firstAfter(lane, view.begin);
    const to = rows.firstFrom(lane, view.end);
    const pixels = Math.max(1, Math.round((width - gutter) * ratio));
    const span = (view.end - view.begin) / pixels;
    const lit = view.lit?.[number];
    context.globalAlpha = lit ? 0.22 : 1;
    if (
      to - from > 2 * pixels &&
      rows.whole / (rows.levels(lane)[0].length / rows.categories.length) <= span
    ) {
      this.#bins(context, lane, view, pixels, span, gutter, width, y, height);
    } else {
      this.#rows(context, from, to, null, y, height, ratio, view, place);
    }
    if (lit) {
      context.globalAlpha = 1;
      this.#rows(context, from, to, lit, y, height, ratio, view, place);
    }
    context.globalAlpha = 1;
    this.#passes(
      context,
      lane,
      y,
      height,
      view,
      place,
      (to - from) / Math.max(1, width - gutter),
      Boolean(lit),
    );
    for (const [row, paint, line] of [
      [view.hovered, "ink", 1],
      [view.selected, "ink", 2],
    ]) {
      if (row < lane.first || row >= lane.end) continue;
      const x = place(rows.begin[row]);
      const w = Math.max(2, place(rows.begin[row] + rows.duration[row]) - x);
      context.strokeStyle = ink("surface");
      context.lineWidth = line + 2;
      context.strokeRect(x - 1, y, w + 2, height);
      context.strokeStyle = ink(paint);
      context.lineWidth = line;
      context.strokeRect(x - 1, y, w + 2, height);
    }
  }

  /** A lane from its bins: in each pixel the colour that most of it has, as strong as it is busy. */
  #bins(context, lane, view, pixels, span, gutter, width, y, height) {
    const { rows, strip } = this;
    const width_ = rows.categories.length;
    const levels = rows.levels(lane);
    let level = 0;
    while (level + 1 < levels.length && rows.whole / (levels[level + 1].length / width_) <= span) level++;
    const bins = levels[level];
    const count = bins.length / width_;
    const bin = rows.whole / count;
    const busy = new Float32Array(pixels * width_);
    const first = Math.max(0, Math.floor(view.begin / bin));
    for (let b = first; b < count && b * bin < view.end; b++) {
      // A bin is no wider than a pixel: it lies in one, or parts of it in two.
      const left = (b * bin - view.begin) / span;
      const p = Math.floor(left);
      const share = Math.min(1, (p + 1 - left) / (bin / span));
      for (let c = 0; c < width_; c++) {
        const ps = bins[b * width_ + c];
        if (ps === 0) continue;
        if (p >= 0 && p < pixels) busy[p * width_ + c] += ps * share;
        if (share < 1 && p + 1 < pixels) busy[(p + 1) * width_ + c] += ps * (1 - share);
      }
    }
    const image = new ImageData(pixels, 1);
    const colours = rows.categories.map((each) =>
      each.waits || each.hatched ? mixed(rgb(each.paint), rgb("surface"), 0.3) : rgb(each.paint),
    );
    for (let p = 0; p < pixels; p++) {
      let [most, best, all] = [0, 0, 0];
      for (let c = 0; c < width_; c++) {
        const ps = busy[p * width_ + c];
        all += ps;
        if (ps > most) [most, best] = [ps, c];
      }
      if (most === 0) continue;
      const [red, green, blue] = colours[best];
      image.data.set([red, green, blue, Math.round(255 * Math.min(1, 0.25 + 0.8 * (all / span)))], 4 * p);
    }
    strip.width = pixels;
    strip.height = 1;
    strip.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(strip, gutter, y, width - gutter, height);
  }

  /** Rows one by one; only `some` of them, if these are given. */
  #rows(context, from, to, some, y, height, ratio, view, place) {
    const { rows } = this;
    const pixel = 1 / ratio;
    let drawn = -Infinity; // right end of what is painted, so that a pixel is painted once or twice
    let k = 0;
    if (some) {
      let high = some.length;
      while (k < high) {
        const middle = (k + high) >> 1;
        if (some[middle] >= from) high = middle;
        else k = middle + 1;
      }
    }
    context.font = `11px ${SANS}`;
    context.textBaseline = "middle";
    for (let n = some ? k : from; n < (some ? some.length : to); n++) {
      const i = some ? some[n] : n;
      if (i >= to) break;
      const x = place(rows.begin[i]);
      const right = place(rows.begin[i] + rows.duration[i]);
      if (right < drawn + pixel * 0.5 && right - x < pixel) continue;
      const w = Math.max(some ? 1.5 : pixel, right - x - (right - x > 3 ? 0.75 : 0));
      drawn = x + w;
      const category = rows.categories[rows.category[i]];
      const waits = rows.wait[i] > 0 ? Math.min(w, place(rows.begin[i] + rows.wait[i]) - x) : 0;
      if (category.hatched) {
        context.fillStyle = this.patterns[rows.category[i]];
        context.fillRect(x, y, w, height);
        continue;
      }
      if (waits > 0) {
        context.fillStyle = waits > 3 ? this.patterns[rows.category[i]] : ink(category.paint, 0.4);
        context.fillRect(x, y, waits, height);
      }
      if (w - waits > 0) {
        context.fillStyle = ink(category.paint);
        context.fillRect(x + waits, y, w - waits, height);
      }
      // What is seen of the box that is of one colour must hold the name.
      const left = Math.max(x + waits, place(view.begin)) + 5;
      const room = Math.min(x + w, place(view.end)) - left - 4;
      if (room > LEAST_FOR_NAME) {
        context.fillStyle = textOn(rgb(category.paint));
        context.textAlign = "left";
        context.fillText(fit(context, rows.names[rows.name[i]], room), left, y + height / 2 + 0.5);
      }
    }
  }

  /** Numbers of micro-batches, where passes are wide enough for them and rows are not. */
  #passes(context, lane, y, height, view, place, crowded, dim) {
    if (crowded < 0.06 || dim) return;
    context.font = `600 11.5px ${SANS}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const pass of this.rows.passes(lane)) {
      if (pass.end < view.begin || pass.begin > view.end) continue;
      const x = place(pass.begin);
      const w = place(pass.end) - x;
      if (w < 4) continue;
      context.fillStyle = ink("surface");
      context.fillRect(x - 0.5, y, 1, height);
      const text = String(pass.batch);
      const left = Math.max(x, place(view.begin));
      const room = Math.min(x + w, place(view.end)) - left;
      if (room < LEAST_FOR_BATCH || context.measureText(text).width > room - 3) continue;
      context.fillStyle = textOn(rgb(this.rows.categories[pass.category].paint));
      context.fillText(text, left + room / 2, y + height / 2 + 0.5);
    }
    context.textAlign = "left";
  }
}

/** So much of one colour and the rest of another. */
function mixed(one, other, share) {
  return one.map((value, i) => Math.round(value * share + other[i] * (1 - share)));
}

const fitted = new Map();

/** Text → as much of it as a width has room for. */
function fit(context, text, room) {
  if (room < 8) return "";
  const whole = clipped(text, 120);
  const key = `${context.font}\n${whole}`;
  let wide = fitted.get(key);
  if (wide === undefined) {
    if (fitted.size > 5000) fitted.clear();
    wide = context.measureText(whole).width;
    fitted.set(key, wide);
  }
  if (wide <= room) return whole;
  const most = Math.floor((whole.length * (room - 12)) / wide); // the ellipsis takes its part
  return most < 3 ? "" : `${whole.slice(0, most).trimEnd()}…`;
}
