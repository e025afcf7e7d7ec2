// Charts as plain SVG: colours are the page's variables, so that they follow the theme, and no library is needed.
//
// A panel is { title, x, y, series } with axes { label, type: "linear" | "log", range, ticks, suffix }
// and series { look, points: [{ x, y, dx, dy, text }], line, band, size }. dx and dy are standard deviations.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const SHAPES = {
  circle: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0Z",
  square: "M-3.6-3.6H3.6V3.6H-3.6Z",
  diamond: "M0-5L5 0L0 5L-5 0Z",
  "triangle-up": "M0-4.6L4.6 3.6H-4.6Z",
  "triangle-down": "M0 4.6L4.6-3.6H-4.6Z",
  cross: "M-1.6-4.8H1.6V-1.6H4.8V1.6H1.6V4.8H-1.6V1.6H-4.8V-1.6H-1.6Z",
  x: "M-4.5-2.3L-2.3-4.5L0-2.2L2.3-4.5L4.5-2.3L2.2 0L4.5 2.3L2.3 4.5L0 2.2L-2.3 4.5L-4.5 2.3L-2.2 0Z",
  star: "M0-5L1.3-1.6L4.8-1.5L2 .7L3 4L0 2L-3 4L-2 .7L-4.8-1.5L-1.3-1.6Z",
  hexagon: "M0-4.8L4.2-2.4V2.4L0 4.8L-4.2 2.4V-2.4Z",
};
const MARKS = 60; // in a series, at most
const DASHES = ["", "6 4", "2 3", "6 3 2 3", "10 4", "10 3 2 3"];

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== "") element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const label = (text, x, y, more = {}) =>
  svg("text", { x, y, fill: "var(--quiet)", "font-size": 11.5, "font-family": FONT, ...more }, text);

const ruler = document.createElement("canvas").getContext("2d");
ruler.font = `11.5px ${FONT}`;
const widthOf = (text) => ruler.measureText(text).width;

// Text that fits; the whole of it stays in a tooltip.
function fitting(text, room) {
  if (widthOf(text) <= room) return text;
  let length = text.length;
  while (length > 1 && widthOf(`${text.slice(0, length)}…`) > room) length -= 1;
  return `${text.slice(0, length)}…`;
}

// ── scales ───────────────────────────────────────────────────────────────────────────────────────────────────

// Round numbers between two ends, about so many.
function roundTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5 ? 1 : 0));
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    ticks.push({ value: i * step, text: minus((i * step).toFixed(digits)) });
  }
  return ticks;
}

function scaleOf(axis, from, to) {
  const bend = axis.type === "log" ? Math.log10 : (value) => value;
  const [low, high] = axis.range.map(bend);
  const at = (value) => from + (bend(value) - low) / (high - low || 1) * (to - from);
  return { at, ticks: ticksOf(axis, low, high, Math.abs(to - from)) };
}

function ticksOf(axis, low, high, length) {
  if (axis.ticks) return spaced(axis.ticks.map((value) => ({ value, text: String(value) })), length);
  if (axis.type !== "log") {
    return roundTicks(low, high, Math.max(2, Math.floor(length / 55)))
      .map((tick) => ({ ...tick, text: tick.text + (axis.suffix ?? "") }));
  }
  const powers = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
    for (const factor of high - low < 1.5 ? [1, 2, 5] : [1]) powers.push(factor * 10 ** power);
  }
  return powers.filter((value) => Math.log10(value) >= low - 1e-9 && Math.log10(value) <= high + 1e-9)
    .map((value) => ({ value, text: String(Number(value.toPrecision(6))) }));
}

// Every second, third … label, if there is no room for all.
function spaced(ticks, length) {
  const widest = Math.max(...ticks.map((tick) => widthOf(tick.text))) + 10;
  const every = Math.max(1, Math.ceil(ticks.length * widest / length));
  return ticks.filter((_, i) => i % every === 0);
}

// A range that holds all values, with a margin. It begins at 0 if the values span a third of the largest or more:
// an axis that begins elsewhere would exaggerate such differences.
function rangeOf(values, { zero = false, margin = 0.06, least = 0, log = false } = {}) {
  const there = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!there.length) return log ? [0.1, 1] : [0, 1];
  let [low, high] = there.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  if (log) return [low / 1.15, high * 1.15];
  if (zero || low > 0 && high - low > high / 3) [low, high] = [Math.min(0, low), Math.max(0, high)];
  const room = Math.max(least, (high - low) * margin, high === low ? Math.abs(high) * 0.1 || 1 : 0);
  return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
}

// ── a chart ──────────────────────────────────────────────────────────────────────────────────────────────────

function chart(panel, width, height) {
  if (panel.cells) return heatMap(panel, width, height);
  const frame = frameOf(panel, width, height);
  const x = scaleOf(panel.x, frame.left, frame.right);
  const y = scaleOf(panel.y, frame.bottom, frame.top);
  const picture = canvas(panel, width, height);
  picture.append(...axes(panel, frame, x, y), ...(panel.behind?.(x.at, y.at, frame) ?? []));
  for (const series of panel.series) picture.append(...drawn(series, x.at, y.at));
  picture.targets = panel.series.flatMap((series) => series.points.filter((point) => point.text)
    .map((point) => ({ x: x.at(point.x), y: y.at(point.y), text: point.text })));
  return picture;
}

function canvas(panel, width, height) {
  const names = (panel.series ?? []).map((series) => series.look.name);
  const shown = names.length > 6 ? `${names.length} series` : names.join("; ");
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
                               "aria-label": [panel.title || panel.about, shown].filter(Boolean).join(": ") });
  if (panel.title) {
    picture.append(label(fitting(panel.title, width / 1.1 - 12), 2, 14,
                         { fill: "var(--ink)", "font-size": 12.5, "font-weight": 600 }));
  }
  return picture;
}

function frameOf(panel, width, height) {
  const ticks = ticksOf(panel.y, ...scaledEnds(panel.y), height - 70).map((tick) => tick.text);
  const side = Math.min(Math.max(0, ...ticks.map(widthOf)), width * 0.3);
  return { left: side + 12 + (panel.y.label ? 18 : 0), right: width - 12, top: panel.title ? 28 : 10,
           bottom: height - (panel.x.label ? 42 : 24), side };
}

const scaledEnds = (axis) => axis.type === "log" ? axis.range.map(Math.log10) : axis.range;

function axes(panel, frame, x, y) {
  const { left, right, top, bottom, side } = frame;
  const parts = [];
  const line = (d) => svg("path", { d, stroke: "var(--line)", fill: "none" });
  for (const tick of y.ticks) {
    const at = y.at(tick.value);
    parts.push(line(`M${left} ${at}H${right}`), label(fitting(tick.text, side + 1), left - 8, at + 4, { "text-anchor": "end" }));
  }
  for (const tick of x.ticks) {
    const at = x.at(tick.value);
    parts.push(line(`M${at} ${bottom}v4`));
    parts.push(label(tick.text, at, bottom + 17, { "text-anchor": "middle" }));
  }
  if (panel.x.label) parts.push(label(panel.x.label, (left + right) / 2, bottom + 35, { "text-anchor": "middle" }));
  if (panel.y.label) {
    const middle = (top + bottom) / 2;
    parts.push(label(panel.y.label, 12, middle, { "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }));
  }
  return parts;
}

function drawn({ look, points, line, band, size = 1 }, x, y) {
  const there = points.filter((point) => Number.isFinite(point.x) && Number.isFinite(point.y));
  const parts = [];
  const place = (point) => `${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)}`;
  const spread = there.filter((point) => point.dy !== null && point.dy !== undefined);
  if (band && spread.length > 1) {
    const edge = (sign) => spread.map((point) => place({ x: point.x, y: point.y + sign * point.dy }));
    parts.push(svg("path", { d: `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z`, fill: look.colour, "fill-opacity": 0.13 }));
  } else {
    const whiskers = there.map((point) => whisker(point, x, y)).join("");
    if (whiskers) parts.push(svg("path", { d: whiskers, stroke: look.colour, "stroke-opacity": 0.6, fill: "none" }));
  }
  if (line && there.length > 1) {
    parts.push(svg("path", { d: `M${there.map(place).join("L")}`, stroke: look.colour, fill: "none",
                             "stroke-width": 1.8, "stroke-linejoin": "round", "stroke-dasharray": look.dash }));
  }
  if (size && there.length <= MARKS) {
    parts.push(...there.map((point) => mark(look, x(point.x), y(point.y), point.size ?? size)));
  } else if (size && !line) parts.push(dots(look, there, x, y));
  return parts;
}

// Thousands of points are one path of plain dots: as single marks they would be slow, and too many to tell apart.
const dots = (look, points, x, y) => svg("path", {
  d: points.map((point) => `M${(x(point.x) - 3).toFixed(1)} ${y(point.y).toFixed(1)}a3 3 0 1 0 6 0a3 3 0 1 0-6 0`).join(""),
  fill: look.colour, "fill-opacity": 0.5 });

// One standard deviation to both sides, both ways.
function whisker(point, x, y) {
  const [px, py] = [x(point.x), y(point.y)];
  const ends = [];
  if (point.dy) ends.push(`M${px} ${y(point.y - point.dy)}V${y(point.y + point.dy)}`);
  if (point.dx) ends.push(`M${x(point.x - point.dx)} ${py}H${x(point.x + point.dx)}`);
  return ends.join("");
}

function mark(look, x, y, size) {
  return svg("path", { d: SHAPES[look.symbol], transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})`,
                       fill: look.hollow ? "var(--card)" : look.colour, stroke: look.colour, "stroke-width": 1.3 });
}

// A sample of a line and its mark; the mark alone where there is no line (dash null).
function swatch(look) {
  const wide = look.dash === null ? 6 : 15;
  const picture = svg("svg", { viewBox: `${-wide} -6 ${2 * wide} 12`, width: 2 * wide, height: 12, "aria-hidden": "true" });
  if (look.dash !== null) {
    picture.append(svg("path", { d: `M${-wide} 0H${wide}`, stroke: look.colour, "stroke-width": 2, "stroke-dasharray": look.dash }));
  }
  picture.append(mark(look, 0, 0, 1));
  return picture;
}

// ── a heat map: cells [{ row, column, value (0 to 1), text }]; a null value is left empty ────────────────────

function heatMap(panel, width, height) {
  const side = Math.min(Math.max(0, ...panel.rows.map(widthOf)), width * 0.38);
  const frame = { left: side + 12, right: width - 4, top: panel.title ? 46 : 24, bottom: height - 8 };
  const [w, h] = [(frame.right - frame.left) / panel.columns.length,
                  Math.min(34, (frame.bottom - frame.top) / Math.max(1, panel.rows.length))];
  const picture = canvas(panel, width, height);
  const at = ({ row, column }) => [frame.left + column * w, frame.top + row * h];
  panel.columns.forEach((text, i) => picture.append(
    label(fitting(text, w + 6), frame.left + (i + 0.5) * w, frame.top - 8, { "text-anchor": "middle" })));
  panel.rows.forEach((text, i) => {
    const name = label(fitting(text, side + 1), frame.left - 8, frame.top + (i + 0.5) * h + 4,
                       { "text-anchor": "end" });
    name.append(svg("title", {}, text));
    picture.append(name);
  });
  for (const cell of panel.cells) {
    const [x, y] = at(cell);
    picture.append(svg("rect", { x: x + 1, y: y + 1, width: Math.max(1, w - 2), height: Math.max(1, h - 2), rx: 3,
                                 fill: "var(--heat)", "fill-opacity": 0.05 + 0.67 * cell.value }));
    if (w > 26 && h > 14) {
      picture.append(label(cell.shown, x + w / 2, y + h / 2 + 4, { "text-anchor": "middle", fill: "var(--ink)" }));
    }
  }
  picture.targets = panel.cells.map((cell) => ({ x: at(cell)[0] + w / 2, y: at(cell)[1] + h / 2, text: cell.text }));
  return picture;
}
