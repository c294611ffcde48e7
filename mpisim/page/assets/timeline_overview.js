// The strip below the timeline: the whole step, and which part of it is seen above.

const STRIP_HEIGHT = 42;

class TimelineOverview {
  /**
   * @param {TimelineRows} rows
   * @param {object} view  begin and end of what is seen
   * @param {function} settle  called with the begin and end of what is to be seen
   */
  constructor(rows, view, settle) {
    this.rows = rows;
    this.view = view;
    this.canvas = make("canvas.whole", { "aria-hidden": "true" });
    this.canvas.addEventListener("pointerdown", (event) => this.#drag(event, settle));
  }

  /** Move what is seen with the pointer; where all is seen, choose a part of it. */
  #drag(event, settle) {
    const { canvas, rows, view } = this;
    canvas.setPointerCapture(event.pointerId);
    const at = (each) => ((pointed(each, canvas)[0] - this.gutter) / (this.width - this.gutter)) * rows.whole;
    const from = at(event);
    const span = view.end - view.begin;
    const choosing = span >= 0.999 * rows.whole;
    const move = (each) => {
      if (!choosing) settle(at(each) - span / 2, at(each) + span / 2);
      else if (Math.abs(at(each) - from) > 0.004 * rows.whole) {
        settle(...[from, at(each)].sort((a, b) => a - b));
      }
    };
    const stop = () => canvas.removeEventListener("pointermove", move);
    move(event);
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("lostpointercapture", stop, { once: true });
  }

  /** How busy compute streams are in every pixel of a width, by category. */
  #busy(pixels, lanes) {
    const { rows } = this;
    const many = rows.categories.length;
    const busy = new Float32Array(pixels * many);
    for (const lane of lanes) {
      const levels = rows.levels(lane);
      const bins = levels.findLast((each) => each.length / many >= pixels) ?? levels[0];
      const count = bins.length / many;
      for (let p = 0; p < pixels; p++) {
        const b = Math.min(count - 1, Math.floor(((p + 0.5) / pixels) * count));
        for (let c = 0; c < many; c++) {
          busy[p * many + c] += (bins[b * many + c] * count) / rows.whole / lanes.length;
        }
      }
    }
    return busy;
  }

  draw(width, { gutter, lanes }) {
    Object.assign(this, { width, gutter });
    const computing = lanes.filter(({ lane }) => lane.computes);
    const all = (computing.length ? computing : lanes).map(({ lane }) => lane);
    const pixels = Math.round(width - gutter);
    const key = `${pixels} ${all.length}`;
    if (this.kept?.key !== key) this.kept = { key, busy: this.#busy(pixels, all) };
    sharp(this.canvas, width, STRIP_HEIGHT, (context) => this.#paint(context, pixels));
  }

  #paint(context, pixels) {
    const { rows, view, width, gutter } = this;
    const many = rows.categories.length;
    for (let p = 0; p < pixels; p++) {
      let bottom = STRIP_HEIGHT - 5;
      rows.categories.forEach(({ paint: colour, waits, hatched }, c) => {
        const tall = this.kept.busy[p * many + c] * (STRIP_HEIGHT - 10);
        if (tall < 0.3 || waits || hatched) return;
        context.fillStyle = ink(colour);
        context.fillRect(gutter + p, bottom - tall, 1.5, tall); // wider, so that no seams show
        bottom -= tall;
      });
    }
    const x = gutter + (view.begin / rows.whole) * (width - gutter);
    const w = Math.max(3, ((view.end - view.begin) / rows.whole) * (width - gutter));
    context.fillStyle = ink("surface", 0.72);
    context.fillRect(gutter, 0, x - gutter, STRIP_HEIGHT);
    context.fillRect(x + w, 0, width - x - w, STRIP_HEIGHT);
    context.strokeStyle = ink("accent");
    context.lineWidth = 2;
    context.strokeRect(x + 1, 1, w - 2, STRIP_HEIGHT - 2);
    if (gutter) {
      context.fillStyle = ink("soft");
      context.font = `11px ${SANS}`;
      context.textBaseline = "middle";
      context.fillText("whole step", 12, STRIP_HEIGHT / 2);
    }
  }
}
