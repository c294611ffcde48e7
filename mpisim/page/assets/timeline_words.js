// What is said of a row of the timeline: in the panel, in the tip under the pointer, and aloud.

const COMMUNICATIONS = ["collective", "send", "recv"];

class RowWords {
  constructor(timeline, rows) {
    this.groups = timeline.groups;
    this.rows = rows;
  }

  name(row) {
    return this.rows.names[this.rows.name[row]];
  }

  /** Terms and what they are of a row; those that it does not have are left out. */
  facts(row) {
    const { rows } = this;
    const kind = rows.kinds[rows.kind[row]];
    const phase = rows.phases[rows.phase[row]];
    const communicates = COMMUNICATIONS.includes(kind);
    const [waits, bytes] = [rows.wait[row], rows.bytes[row]];
    const moves = rows.duration[row] - waits;
    const lane = rows.lanes[rows.laneOf(row)];
    const group = this.groups[lane.group];
    const known = (value) => (value >= 0 ? String(value) : null);
    return [
      ["Begin", time(rows.begin[row], 7)],
      ["Duration", time(rows.duration[row], 5)],
      ["Waiting, then moving data", communicates ? `${time(waits)}, ${time(moves)}` : null],
      ["Kind", kind],
      ["Phase", phase && phase !== "none" ? phase : null],
      ["Layer", known(rows.layer[row])],
      ["Micro-batch", known(rows.micro_batch[row])],
      ["Bytes", bytes >= 0 ? `${size(bytes)}${bytes >= 1024 ? ` (${digits(bytes, 0)} B)` : ""}` : null],
      ["Bandwidth", communicates && bytes > 0 && moves > 0 ? rate((bytes * 1e12) / moves) : null],
      ["Communicator", rows.communicators[rows.communicator[row]] ?? null],
      ["GPU", `rank ${group.rank}, ${group.title}`],
      ["Stream", lane.name],
    ].filter(([, value]) => value !== null);
  }

  /** A line for the tip. */
  brief(row) {
    const { rows } = this;
    const parts = [time(rows.duration[row], 5)];
    if (rows.wait[row] > 0) parts.push(`of which ${time(rows.wait[row])} waiting`);
    if (rows.layer[row] >= 0) parts.push(`layer ${rows.layer[row]}`);
    if (rows.micro_batch[row] >= 0) parts.push(`micro-batch ${rows.micro_batch[row]}`);
    return parts.join(", ");
  }

  /** All of it for screen readers. */
  sentence(row) {
    const facts = this.facts(row).map(([term, value]) => `${term} ${value}`);
    return `${clipped(this.name(row), 120)}: ${facts.join(", ")}`;
  }
}
