// Figures as text. Times are whole picoseconds, sizes bytes (-1: unknown).

const TIME_UNITS = [
  [1e12, "s"],
  [1e9, "ms"],
  [1e6, "µs"],
  [1e3, "ns"],
  [1, "ps"],
];
const BYTE_UNITS = [
  [2 ** 50, "PiB"],
  [2 ** 40, "TiB"],
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
  [1, "B"],
];
const RATE_UNITS = [
  [1e15, "PB/s"],
  [1e12, "TB/s"],
  [1e9, "GB/s"],
  [1e6, "MB/s"],
  [1e3, "kB/s"],
  [1, "B/s"],
];
const MISSING = "–";

const spelled = new Map();

/** Number → digits with thousands apart, so many of them behind the point. */
function digits(value, decimals) {
  if (!spelled.has(decimals)) {
    spelled.set(
      decimals,
      new Intl.NumberFormat("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }),
    );
  }
  return spelled.get(decimals).format(value).replace("-", "−");
}

/** The largest unit of which a value is at least one. */
function unitOf(value, units) {
  const size = Math.abs(value);
  return units.find(([factor]) => size >= factor) ?? units[units.length - 1];
}

/** Decimals that leave a value so many digits that count. */
function decimalsOf(value, significant) {
  const size = Math.abs(value);
  return Math.max(0, significant - 1 - (size >= 1 ? Math.floor(Math.log10(size) + 1e-12) : 0));
}

function inUnits(value, units, significant) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  if (value === 0) return `0 ${units === TIME_UNITS ? "ms" : units[units.length - 1][1]}`;
  const [factor, unit] = unitOf(value, units);
  const exact = factor === 1 && Number.isInteger(value);
  return `${digits(value / factor, exact ? 0 : decimalsOf(value / factor, significant))} ${unit}`;
}

const time = (ps, significant = 4) => inUnits(ps, TIME_UNITS, significant);
const size = (bytes, significant = 3) => inUnits(bytes, BYTE_UNITS, significant);
const rate = (perSecond, significant = 3) => inUnits(perSecond, RATE_UNITS, significant);

/** Share of one → per cent. */
function percent(share, decimals = 1) {
  return Number.isFinite(share) && share !== null ? `${digits(100 * share, decimals)} %` : MISSING;
}

/** Share of one → per cent with its sign. */
function change(share, decimals = 1) {
  if (share === null || share === undefined || !Number.isFinite(share)) return MISSING;
  const none = Math.abs(100 * share) < 0.5 / 10 ** decimals; // no sign before a zero
  return `${share > 0 && !none ? "+" : ""}${digits(none ? 0 : 100 * share, decimals)} %`;
}

function plain(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  if (Number.isInteger(value)) return digits(value, 0);
  return digits(value, Math.min(6, decimalsOf(value, 4) + (Math.abs(value) < 1 ? 2 : 0)));
}

/** Values of one column → how each is written, all in one unit, so that they can be compared. */
function columnFormat(type, values) {
  const units = { time: TIME_UNITS, bytes: BYTE_UNITS, rate: RATE_UNITS }[type];
  if (type === "text") return { unit: "", write: (value) => value ?? MISSING };
  if (type === "percent") return { unit: "", write: (value) => percent(value) };
  if (!units) return { unit: "", write: plain };
  let [most, least] = [0, Infinity];
  for (const value of values) {
    const size = Math.abs(value);
    if (size > most) most = size;
    if (size > 0 && size < least) least = size;
  }
  // Where the least would have no digits left in the unit of the most, times take a smaller unit, and
  // other values each their own.
  if (least < most / 1e4 && type !== "time")
    return {
      unit: "",
      write: (value) => (type === "bytes" && value < 0 ? MISSING : inUnits(value, units, 3)),
    };
  const wide = least < 5e-4 * unitOf(most, units)[0];
  const [factor, unit] = unitOf(wide ? most / 1e3 : most, units);
  const decimals = Math.max(decimalsOf(most / factor, 5), least < most / 1e3 ? (wide ? 3 : 4) : 0);
  return {
    unit,
    write: (value) =>
      value === null || value === undefined || !Number.isFinite(value) || (type === "bytes" && value < 0)
        ? MISSING
        : digits(value / factor, factor === 1 || value === 0 ? 0 : decimals),
  };
}

/** Span and how many pixels it has → marks of an axis: [ps, text]. */
function ticks(begin, end, pixels, apart = 110) {
  const least = ((end - begin) * apart) / Math.max(1, pixels);
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= least) ?? power * 10;
  const [factor, unit] = unitOf(Math.max(Math.abs(begin), Math.abs(end)), TIME_UNITS);
  const decimals = Math.min(12, Math.max(0, Math.ceil(Math.log10(factor / step) - 1e-9)));
  const marks = [];
  for (let i = Math.ceil(begin / step); i * step <= end; i++) {
    marks.push([i * step, `${digits((i * step) / factor, decimals)} ${unit}`]);
  }
  return marks;
}
