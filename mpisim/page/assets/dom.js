// Elements of the page. Texts reach the page through here alone, as text, so that nothing a run is
// named after can become markup.

/** Characters that would be invisible, or turn the direction of what follows. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Any value → a text that shows all it holds: control characters as pictures, halves of pairs as �. */
function shown(value) {
  const text = String(value ?? "").toWellFormed?.() ?? String(value ?? "");
  return text.replace(UNSEEN, (each) => {
    const code = each.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });
}

/** Text → at most so many characters of it. */
function clipped(text, most) {
  const whole = shown(text);
  return whole.length <= most
    ? whole
    : `${whole.slice(0, most - 1).toWellFormed?.() ?? whole.slice(0, most - 1)}…`;
}

/**
 * A new element.
 *
 * @param {string} what  tag and classes: "td.num.soft"
 * @param {object} attributes  null and false are left out, true is an empty one
 * @param {...(Node|string|number|null)} children  what is no element becomes text
 */
function make(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(key, value === true ? "" : shown(value));
    }
  }
  fill(element, ...children);
  return element;
}

/** Replace what an element holds. */
function fill(element, ...children) {
  element.replaceChildren();
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : shown(child));
  }
}

/** A button that does something when it is pressed. */
function button(label, press, attributes = {}) {
  const element = make("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", press);
  return element;
}

/** A select with a label: [value, text] of each choice. */
function choice(label, options, change) {
  const select = make(
    "select",
    {},
    options.map(([value, text]) => make("option", { value }, clipped(text, 80))),
  );
  select.addEventListener("change", () => change(select.value));
  return make("label.row", {}, make("span", {}, label), select);
}

/** Terms and what is said of each. */
function definitions(what, pairs) {
  return make(
    what,
    {},
    pairs.map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd.name", {}, value))),
  );
}

/** A square of a colour, `name` being one of the colours in base.css. */
function swatch(name, hatched = false) {
  const element = make(hatched ? "span.swatch.hatched" : "span.swatch", { "aria-hidden": "true" });
  paint(element, name);
  return element;
}

/** Give an element a colour. Through its style object: the page's policy forbids style attributes. */
function paint(element, name) {
  element.style.setProperty("--paint", `var(--${name})`);
}

/** Run a function at most once a frame, however often it is asked for. */
function eachFrame(run) {
  let asked = 0;
  return () => {
    if (!asked) {
      asked = requestAnimationFrame(() => {
        asked = 0;
        run();
      });
    }
  };
}

/** Tell screen readers, once things have come to rest. */
function announcer(element) {
  let timer = 0;
  return (text) => {
    clearTimeout(timer);
    timer = setTimeout(() => fill(element, clipped(text, 600)), 120);
  };
}

/** Pixels of pictures to those of CSS: pictures grow with the type, which does on very wide screens. */
function grown() {
  return Math.max(1, parseFloat(getComputedStyle(document.documentElement).fontSize) / 16);
}

/** Where a pointer is on an element, in pixels of pictures. */
function pointed(event, element) {
  const box = element.getBoundingClientRect();
  return [(event.clientX - box.left) / grown(), (event.clientY - box.top) / grown()];
}

/** Draw on a canvas, sharp on any screen; `draw(context, width, height, ratio)` in pixels of pictures. */
function sharp(canvas, width, height, draw) {
  const ratio = (window.devicePixelRatio || 1) * grown();
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  canvas.style.height = `${height * grown()}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  draw(context, width, height, ratio);
}

/** Call back when an element's width changes, and once at first, with it in pixels of pictures. */
function onWidth(element, run) {
  let last = -1;
  new ResizeObserver(() => {
    const width = element.clientWidth;
    if (width > 0 && width !== last) {
      last = width;
      run(width / grown());
    }
  }).observe(element);
}
