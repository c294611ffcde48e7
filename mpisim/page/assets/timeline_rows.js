// Rows of the timeline, so kept that any part of them is found and drawn at once: every lane sorted by
// begin, and for lanes with more rows than a screen has pixels a pyramid of bins.

/** Colours that phases and kinds take which have none of their own. */
const SPARE = ["forward", "backward", "optimizer", "recompute", "copy", "p2p"];
const PAINT_OF_KIND = {
  copy: "copy",
  collective: "collective",
  send: "p2p",
  recv: "p2p",
  host: "host",
  "host wait": "waiting",
};
const LABEL_OF_KIND = {
  send: "send and receive",
  recv: "send and receive",
  collective: "collective communication",
  copy: "copy",
  host: "host",
  "host wait": "host waiting",
};

const LABEL_OF_PHASE = { none: "other kernels", "": "kernels", weight: "weight gradients" };

class TimelineRows {
  /**
   * @param {object} timeline  of the payload
   * @param {number} whole  ps of the step
   */
  constructor(timeline, whole) {
    const { rows } = timeline;
    Object.assign(this, rows);
    this.names = timeline.names;
    this.phases = timeline.phases;
    this.kinds = timeline.kinds;
    this.communicators = timeline.communicators ?? [];
    this.count = this.begin.length;
    this.#categorise();
    this.lanes = [];
    const kernel = this.kinds.indexOf("kernel");
    timeline.groups.forEach((group, g) => {
      for (const stream of group.streams)
        this.lanes.push({
          group: g,
          name: stream.name,
          first: stream.first,
          end: stream.first + stream.count,
        });
    });
    let last = whole;
    for (const lane of this.lanes) {
      this.#endsOf(lane);
      let kernels = 0;
      for (let i = lane.first; i < lane.end; i++) if (this.kind[i] === kernel) kernels += 1;
      lane.computes = kernels > (lane.end - lane.first) / 2;
      if (lane.end > lane.first) last = Math.max(last, lane.latest[lane.end - lane.first - 1]);
    }
    this.whole = last;
    this.hole = timeline.cut ? this.#leftOut() : null;
  }

  /** The longest time in which no lane has a row, where it is a tenth of the step or more: [begin, end]. */
  #leftOut() {
    const bins = 4096;
    const open = new Int32Array(bins + 1);
    const bin = (ps) => Math.max(0, Math.min(bins - 1, Math.floor((ps / this.whole) * bins)));
    for (let i = 0; i < this.count; i++) {
      open[bin(this.begin[i])] += 1;
      open[bin(this.begin[i] + this.duration[i]) + 1] -= 1;
    }
    let [rows, from, best, longest] = [0, 0, 0, 0];
    for (let b = 0; b < bins; b++) {
      rows += open[b];
      if (rows > 0) from = b + 1;
      else if (b + 1 - from > longest) [best, longest] = [from, b + 1 - from];
    }
    if (longest < bins / 10 || best === 0) return null;
    return [(best / bins) * this.whole, ((best + longest) / bins) * this.whole];
  }

  /** Give every row a category: the phase of a kernel, the kind of anything else. */
  #categorise() {
    const { kind, phase, count } = this;
    this.categories = [];
    const of = new Map();
    const used = new Set();
    const add = (key, label, wanted, hatched = false) => {
      if (of.has(key)) return of.get(key);
      const paint =
        wanted && (!used.has(wanted) || wanted === "p2p")
          ? wanted
          : (SPARE.find((each) => !used.has(each)) ?? "host");
      used.add(paint);
      of.set(key, this.categories.length);
      this.categories.push({ label, paint, hatched });
      return this.categories.length - 1;
    };
    const phases = new Set();
    // Phases in the order in which a step has them, whatever comes first in the rows.
    const seen = new Uint8Array(65536);
    for (let i = 0; i < count; i++) seen[kind[i] * 256 + phase[i]] = 1;
    const table = new Uint8Array(65536);
    const present = [...seen.keys()].filter((each) => seen[each]);
    const named = (each) =>
      this.kinds[each >> 8] === "kernel"
        ? paintOfPhase(this.phases[each & 255])
        : PAINT_OF_KIND[this.kinds[each >> 8]];
    for (const each of present) if (this.kinds[each >> 8] === "kernel") phases.add(each & 255);
    present.sort((a, b) => (named(a) ? 0 : 1) - (named(b) ? 0 : 1) || (a >> 8) - (b >> 8) || a - b);
    for (const each of present) {
      const kindName = this.kinds[each >> 8];
      const phaseName = this.phases[each & 255];
      table[each] =
        kindName === "kernel"
          ? add(
              `phase ${phaseName}`,
              phases.size < 2 ? "kernels" : (LABEL_OF_PHASE[phaseName] ?? phaseName),
              named(each),
            )
          : add(
              LABEL_OF_KIND[kindName] ?? kindName,
              LABEL_OF_KIND[kindName] ?? kindName,
              named(each),
              kindName === "host wait",
            );
    }
    // Bins keep the time that a communication waits apart from that in which it moves data.
    this.colours = this.categories.length;
    const waits = new Uint8Array(this.colours);
    for (let i = 0; i < count; i++) if (this.wait[i] > 0) waits[table[kind[i] * 256 + phase[i]]] = 1;
    this.waiting = Array.from(waits, (waiting, c) =>
      waiting ? this.categories.push({ ...this.categories[c], waits: true }) - 1 : c,
    );
    this.category = new Uint8Array(count);
    for (let i = 0; i < count; i++) this.category[i] = table[kind[i] * 256 + phase[i]];
    this.forward = new Uint8Array(this.phases.map((name) => paintOfPhase(name) === "forward"));
  }

  /** The latest end of all rows up to each: with it rows that overlap are found by bisection, too. */
  #endsOf(lane) {
    const latest = new Float64Array(lane.end - lane.first);
    let last = -Infinity;
    for (let i = lane.first; i < lane.end; i++) {
      last = Math.max(last, this.begin[i] + this.duration[i]);
      latest[i - lane.first] = last;
    }
    lane.latest = latest;
  }

  /** First row of a lane that may end after a time. */
  firstAfter(lane, ps) {
    let [low, high] = [0, lane.latest.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.latest[middle] > ps) high = middle;
      else low = middle + 1;
    }
    return lane.first + low;
  }

  /** First row of a lane that begins at a time or later. */
  firstFrom(lane, ps) {
    let [low, high] = [lane.first, lane.end];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.begin[middle] >= ps) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** The row of a lane at a time, or the nearest within some ps, or -1. */
  rowAt(lane, ps, near) {
    const to = this.firstFrom(lane, ps + near);
    let [best, distance] = [-1, Infinity];
    for (let i = Math.max(this.firstAfter(lane, ps - near), to - 256); i < to; i++) {
      const away = Math.max(this.begin[i] - ps, ps - this.begin[i] - this.duration[i], 0);
      if (away <= distance && away <= near) [best, distance] = [i, away];
    }
    return best;
  }

  /** Number of the lane that a row is in. */
  laneOf(row) {
    return this.lanes.findIndex((lane) => lane.first <= row && row < lane.end);
  }

  /** Bins of a lane, finest first: each level has half the bins of the one before. */
  levels(lane) {
    if (lane.levels) return lane.levels;
    const width = this.categories.length;
    let bins = 64;
    while (bins < (lane.end - lane.first) / 2 && bins < 65536) bins *= 2;
    const finest = new Float32Array(bins * width);
    const span = this.whole / bins;
    const spread = (begin, end, category) => {
      for (let bin = Math.floor(begin / span); bin < bins && bin * span < end; bin++) {
        finest[bin * width + category] += Math.min(end, (bin + 1) * span) - Math.max(begin, bin * span);
      }
    };
    for (let i = lane.first; i < lane.end; i++) {
      const [begin, moves] = [this.begin[i], this.begin[i] + this.wait[i]];
      if (this.wait[i] > 0) spread(begin, moves, this.waiting[this.category[i]]);
      spread(moves, begin + this.duration[i], this.category[i]);
    }
    lane.levels = [finest];
    for (; bins > 64; bins /= 2) {
      const fine = lane.levels[lane.levels.length - 1];
      const coarse = new Float32Array(fine.length / 2);
      for (let bin = 0; bin < bins / 2; bin++) {
        for (let c = 0; c < width; c++)
          coarse[bin * width + c] = fine[2 * bin * width + c] + fine[(2 * bin + 1) * width + c];
      }
      lane.levels.push(coarse);
    }
    return lane.levels;
  }

  /** Passes of a lane: what it does in a row for one micro-batch, forward or else. */
  passes(lane) {
    if (lane.passes) return lane.passes;
    lane.passes = [];
    let open = null;
    for (let i = lane.first; i < lane.end; i++) {
      const batch = this.micro_batch[i];
      const key =
        batch < 0 || this.kinds[this.kind[i]] !== "kernel"
          ? -1
          : 2 * batch + (this.forward[this.phase[i]] ? 1 : 0);
      if (open && open.key === key) open.end = this.begin[i] + this.duration[i];
      else {
        open =
          key < 0
            ? null
            : {
                key,
                batch,
                begin: this.begin[i],
                end: this.begin[i] + this.duration[i],
                category: this.category[i],
              };
        if (open) lane.passes.push(open);
      }
    }
    return lane.passes;
  }

  /** Rows whose names have some words in them, and the time they take. */
  find(words) {
    const looked = words.trim().toLowerCase();
    const hit = this.names.map((name) => shown(name).toLowerCase().includes(looked));
    const rows = [];
    let total = 0;
    for (const lane of this.lanes) {
      for (let i = lane.first; i < lane.end; i++) {
        if (hit[this.name[i]]) {
          rows.push(i);
          total += this.duration[i];
        }
      }
    }
    return { rows: Int32Array.from(rows), total };
  }

  /** Sorted numbers of rows → those of each lane, as a part of the list. */
  byLane(rows) {
    const sorted = Int32Array.from(rows).sort();
    const from = (row) => {
      let [low, high] = [0, sorted.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (sorted[middle] >= row) high = middle;
        else low = middle + 1;
      }
      return low;
    };
    return this.lanes.map((lane) => sorted.subarray(from(lane.first), from(lane.end)));
  }
}
