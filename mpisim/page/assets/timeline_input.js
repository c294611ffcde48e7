// What mouse, fingers and keys do to the timeline.

const WHEEL_STEP = 0.0016;
const DRAG_AT_LEAST = 4;

/**
 * @param {HTMLCanvasElement} canvas
 * @param {object} act  what can be done: zoom(factor, at), pan(ps), show(begin, end), pick(x, y),
 *   point(x, y) and leave(), perPixel(), timeAt(x), step(rows), lane(lanes), toSelected(), reset(),
 *   clear(), gutter()
 * @param {HTMLElement} frame  box around the canvas, for the marked span
 */
function listen(canvas, act, frame) {
  const fingers = new Map();
  let gesture = null;
  const mark = make("div.box", { hidden: true });
  frame.append(mark);
  const where = (event) => pointed(event, canvas);

  // A wheel scrolls the page, until the timeline has been clicked or Ctrl is held: pinching on a
  // touchpad says that it is.
  canvas.addEventListener(
    "wheel",
    (event) => {
      const pinched = event.ctrlKey || event.metaKey;
      if (!pinched && document.activeElement !== canvas) return;
      const lines = event.deltaMode === 1 ? 16 : 1;
      const [x] = where(event);
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        act.pan((event.deltaX || event.deltaY) * lines * act.perPixel());
      } else if (
        !act.zoom(Math.exp(event.deltaY * lines * WHEEL_STEP * (pinched ? 4 : 1)), act.timeAt(x), false) &&
        !pinched
      )
        return;
      event.preventDefault();
    },
    { passive: false },
  );

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = where(event);
    fingers.set(event.pointerId, [x, y]);
    canvas.setPointerCapture(event.pointerId);
    if (fingers.size === 1)
      gesture = { kind: event.shiftKey ? "mark" : "drag", x, y, from: act.timeAt(x), moved: false };
    else if (fingers.size === 2) {
      const [a, b] = [...fingers.values()];
      gesture = { kind: "pinch", apart: Math.abs(a[0] - b[0]), x: (a[0] + b[0]) / 2 };
    }
  });

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = where(event);
    if (!fingers.has(event.pointerId)) {
      act.point(x, y);
      return;
    }
    const [before] = fingers.get(event.pointerId);
    fingers.set(event.pointerId, [x, y]);
    if (gesture?.kind === "pinch" && fingers.size === 2) {
      const [a, b] = [...fingers.values()];
      const apart = Math.max(12, Math.abs(a[0] - b[0]));
      const middle = (a[0] + b[0]) / 2;
      act.pan((gesture.x - middle) * act.perPixel());
      act.zoom(gesture.apart / apart, act.timeAt(middle), false);
      Object.assign(gesture, { apart, x: middle });
      return;
    }
    if (!gesture || (!gesture.moved && Math.abs(x - gesture.x) < DRAG_AT_LEAST)) return;
    gesture.moved = true;
    act.leave();
    if (gesture.kind === "drag") {
      canvas.classList.add("dragging");
      act.pan((before - x) * act.perPixel());
    } else if (gesture.kind === "mark") {
      const left = Math.max(act.gutter(), Math.min(x, gesture.x));
      mark.hidden = false;
      mark.style.left = `${left * grown()}px`;
      mark.style.width = `${(Math.max(x, gesture.x) - left) * grown()}px`;
    }
  });

  const lift = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    const [x, y] = where(event);
    canvas.classList.remove("dragging");
    mark.hidden = true;
    if (gesture?.kind === "mark" && gesture.moved)
      act.show(...[gesture.from, act.timeAt(x)].sort((a, b) => a - b));
    else if (gesture && gesture.kind !== "pinch" && !gesture.moved && event.type === "pointerup")
      act.pick(x, y);
    gesture = null;
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => act.leave());
  canvas.addEventListener("dblclick", (event) => {
    act.pick(...where(event));
    act.toSelected();
  });

  const keys = {
    ArrowLeft: () => act.pan(-0.15, true),
    ArrowRight: () => act.pan(0.15, true),
    a: () => act.pan(-0.15, true),
    d: () => act.pan(0.15, true),
    w: () => act.zoom(1 / 1.6),
    s: () => act.zoom(1.6),
    "+": () => act.zoom(1 / 1.6),
    "=": () => act.zoom(1 / 1.6),
    "-": () => act.zoom(1.6),
    ".": () => act.step(1),
    ",": () => act.step(-1),
    n: () => act.step(1),
    p: () => act.step(-1),
    ArrowUp: () => act.lane(-1),
    ArrowDown: () => act.lane(1),
    Home: () => act.edge(-1),
    End: () => act.edge(1),
    Enter: () => act.toSelected(),
    0: () => act.reset(),
    Escape: () => act.clear(),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const stepping =
      event.shiftKey && { ArrowLeft: () => act.step(-1), ArrowRight: () => act.step(1) }[event.key];
    const press = stepping || keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!press) return;
    press();
    event.preventDefault();
  });
}

const SHORTCUTS = [
  ["W S + −", "zoom"],
  ["A D ← →", "move"],
  [". , or Shift + → ←", "next, previous row"],
  ["↑ ↓", "lane above, below"],
  ["Enter or double-click", "zoom to the row"],
  ["Home End", "first, last row of the lane"],
  ["Shift + drag", "zoom to a span"],
  ["Ctrl + wheel, pinch", "zoom; the wheel alone once the timeline was clicked"],
  ["0", "whole step"],
  ["Esc", "let go of the row"],
];
