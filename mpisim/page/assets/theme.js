// Light or dark: what the system asks for, until the button says otherwise.

const theme = {
  changed: [],
  dark: matchMedia("(prefers-color-scheme: dark)"),
  still: matchMedia("(prefers-reduced-motion: reduce)"),
  printing: false,

  /** Whether colours are the dark ones just now. */
  isDark() {
    const chosen = document.documentElement.dataset.theme;
    return !this.printing && (chosen ? chosen === "dark" : this.dark.matches);
  },

  tell() {
    known.clear();
    for (const run of this.changed) run();
  },
};

const known = new Map();

/** Name of a colour in base.css → its red, green and blue as they are shown now. */
function rgb(name) {
  if (!known.has(name)) {
    // Only the colour of an element tells what light-dark() comes to; a canvas then makes numbers of it.
    const probe = make("span");
    probe.style.color = `var(--${name})`;
    probe.style.colorScheme = theme.isDark() ? "dark" : "light";
    document.body.append(probe);
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = getComputedStyle(probe).color;
    canvas.fillRect(0, 0, 1, 1);
    probe.remove();
    known.set(name, [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
  }
  return known.get(name);
}

/** Name of a colour in base.css → what a canvas takes. */
function ink(name, opacity = 1) {
  return `rgb(${rgb(name).join(" ")} / ${opacity})`;
}

/** Relative luminance, as WCAG has it. */
function luminance([red, green, blue]) {
  const linear = (value) => (value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
}

/** Black or white, whichever is easier to read on a colour. */
function textOn(colour) {
  return luminance(colour) > 0.179 ? "#000000" : "#ffffff";
}

/** The button that switches. */
function themeButton() {
  const label = () => (theme.isDark() ? "Light" : "Dark");
  const element = button(
    label(),
    () => {
      document.documentElement.dataset.theme = theme.isDark() ? "light" : "dark";
      try {
        localStorage.setItem("mpisim-theme", document.documentElement.dataset.theme);
      } catch {
        // A page opened from a file may have no storage; the choice then lasts until it is closed.
      }
      update();
    },
    { "data-action": "theme" },
  );
  element.classList.add("theme");
  const update = () => {
    element.textContent = label();
    element.setAttribute("aria-label", `Switch to ${label().toLowerCase()} colours`);
    theme.tell();
  };
  try {
    const kept = localStorage.getItem("mpisim-theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch {
    // See above.
  }
  theme.dark.addEventListener("change", update);
  for (const [event, on] of [
    ["beforeprint", true],
    ["afterprint", false],
  ]) {
    window.addEventListener(event, () => {
      theme.printing = on;
      theme.tell();
    });
  }
  update();
  return element;
}
