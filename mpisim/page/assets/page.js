// The page: its head first, then a section for everything that the payload has.

const page = document.getElementById("page");
const links = make("ul");
const main = make("main", { id: "content", tabindex: "-1" });

/** A section with a heading and an entry in the bar; `why` in place of what there is not. */
function section(id, title, lead, ...content) {
  const shownContent = content.flat().filter(Boolean);
  if (!shownContent.length) return;
  const element = make(
    "section.part",
    { id, "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, title),
    lead ? make("p.lead", {}, lead) : null,
    shownContent,
  );
  main.append(element);
  links.append(make("li", {}, make("a", { href: `#${id}` }, title)));
}

function drawTop(payload) {
  const { headline, compare } = payload;
  document.title = clipped(payload.title || "mpisim", 200);
  const bar = make(
    "header.bar",
    {},
    make("span.mark", {}, "mpisim"),
    make("nav", { "aria-label": "Sections" }, links),
    themeButton(),
  );
  const [number, unit] = /^(.*\d)\s*(\D*)$/.exec(headline?.step ?? "")?.slice(1) ?? ["", ""];
  const step =
    headline && !compare
      ? make(
          "div.headline",
          {},
          make(
            "div.figure",
            {},
            make("b", { "data-role": "step" }, number, make("small", {}, ` ${unit}`)),
            headline.error ? make("p.error", {}, headline.error) : null,
            make("span", {}, "a training step"),
          ),
          headline.facts?.length ? definitions("dl.facts", headline.facts) : null,
        )
      : null;
  page.replaceChildren(
    make("a.skip", { href: "#content" }, "Skip to the content"),
    bar,
    main,
    make("footer.foot", {}, "Made by mpisim. This file holds all it shows and loads nothing."),
  );
  main.append(
    make(
      "div.top",
      {},
      make("p.over", {}, compare ? "Two runs compared" : "Simulated training step"),
      make("h1.name", {}, clipped(payload.title || "Training step", 300)),
      payload.subtitle ? make("p.sub", {}, clipped(payload.subtitle, 500)) : null,
      step,
      compare ? compareTop(compare) : null,
    ),
  );
}

/** Let the browser paint before more is drawn. */
const breath = () => new Promise((resolve) => setTimeout(resolve));

async function drawSections(payload) {
  const whole = payload.whole_ps;
  const why = (id) => (payload.why?.[id] ? make("p.note", {}, payload.why[id]) : null);
  const tables = new Map((payload.tables ?? []).map((table) => [table.id, table]));
  const table = (id, options) => {
    const found = tables.get(id);
    tables.delete(id);
    return found ? payloadTable(found, options) : null;
  };
  const { compare } = payload;
  if (compare) {
    section(
      "differences",
      "Where the difference comes from",
      "Parts of both runs, in order of what they change. Bars to the left: B takes less time.",
      compareSection(compare),
    );
    section(
      "keys",
      "What differs in the experiments",
      null,
      compare.keys?.length ? keysTable(compare) : make("p", {}, "No key differs."),
    );
  }
  if (payload.parts?.rows?.length)
    section("step", "Where the step goes", null, stepSection(payload.parts, whole));
  else if (!compare) section("step", "Where the step goes", null, why("parts"));
  let timeline = null;
  if (payload.timeline?.rows?.begin?.length) {
    timeline = timelineSection(payload);
    section("timeline", "Timeline", null, timeline.element);
  } else section("timeline", "Timeline", null, why("timeline"));
  await breath();
  if (payload.path)
    section(
      "path",
      "Critical path",
      "The chain of work and waiting that sets the step time.",
      pathSection(payload.path, whole, timeline, table("path_by_name")),
    );
  else section("path", "Critical path", null, why("path"));
  await breath();
  section("gpus", "GPUs", null, table("stages"), table("ranks"));
  section("kernels", "Kernels", null, table("kernels", { bare: true }));
  section(
    "communications",
    "Communications",
    null,
    table("communications", { bare: true }),
    table("collectives"),
  );
  section(
    "memory",
    "Memory",
    null,
    payload.memory?.groups?.length ? memorySection(payload.memory) : why("memory"),
  );
  await breath();
  section(
    "links",
    "Links",
    null,
    payload.links?.names?.length ? linksSection(payload.links, whole) : why("links"),
  );
  section(
    "sensitivities",
    "Sensitivities",
    "How much longer or shorter the step would be.",
    payload.sensitivities?.rows?.length ? sensitivitiesSection(payload.sensitivities) : why("sensitivities"),
  );
  section(
    "tables",
    "More tables",
    null,
    [...tables.values()].map((each) => payloadTable(each)),
  );
  if (payload.statements?.length)
    section(
      "statements",
      "What this rests on",
      null,
      make("div.statements", {}, payload.statements.map(statement)),
    );
  if (payload.experiment)
    section(
      "experiment",
      "Experiment",
      null,
      make(
        "div.card",
        {},
        make(
          "pre",
          { tabindex: "0", role: "region", "aria-label": "Text of the experiment" },
          payload.experiment,
        ),
      ),
    );
}

/** A list of sentences; lines that are set out in columns stay as they are. */
function statement({ title, items }) {
  const first = items.findIndex((each) => /^\s{2}/.test(each));
  if (first < 0)
    return make(
      "div",
      {},
      make("h3", {}, title),
      make(
        "ul",
        {},
        items.map((item) => make("li.name", {}, item)),
      ),
    );
  return make(
    "div",
    {},
    make("h3", {}, title),
    first > 0 ? make("p.name", {}, items.slice(0, first).join(" ")) : null,
    make(
      "pre",
      { tabindex: "0", role: "region", "aria-label": `${title}, in columns` },
      items.slice(first).join("\n"),
    ),
  );
}

/** Mark in the bar which section is being read. */
function followReading() {
  const anchors = [...links.querySelectorAll("a")];
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const anchor of anchors) {
          const on = anchor.getAttribute("href") === `#${entry.target.id}`;
          if (on) anchor.setAttribute("aria-current", "true");
          else anchor.removeAttribute("aria-current");
          if (on) links.parentElement.scrollTo({ left: anchor.offsetLeft - 80, behavior: "auto" });
        }
      }
    },
    { rootMargin: "-15% 0px -75% 0px" },
  );
  for (const each of main.querySelectorAll("section.part")) seen.observe(each);
}

/** On paper everything is unfolded. */
function unfold() {
  for (const each of main.querySelectorAll("details")) {
    if (theme.printing) {
      each.dataset.folded = String(!each.open);
      each.open = true;
    } else if (each.dataset.folded === "true") {
      each.open = false;
      delete each.dataset.folded;
    }
  }
}

async function open() {
  if (typeof DecompressionStream === "undefined" || !CSS.supports("color", "light-dark(red, blue)")) {
    page.textContent =
      "This page needs a browser of 2024 or newer: Chrome 123, Edge 123, Firefox 120 or Safari 17.5.";
    return;
  }
  let payload;
  try {
    payload = await readPayload(drawTop);
  } catch (error) {
    main.append(
      make(
        "p.notice",
        { role: "alert" },
        `The data of this page cannot be read: ${error.message}. Was the file copied whole?`,
      ),
    );
    throw error;
  }
  await drawSections(payload);
  followReading();
  theme.changed.push(unfold);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  performance.mark("mpisim-drawn");
  document.documentElement.dataset.drawn = "true";
}

open();
