// The plots: each kind is a function of a section that says what its panels hold; `draw` shows any of them.

const METHODS = new Map(report.methods.map((method) => [method.name, method]));
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const CROWD = 9; // one curve for every method the paper compares
const NARROW = matchMedia("(max-width: 640px)");
const TOUCH = matchMedia("(pointer: coarse)");
// Buttons are named, not left to plotly: it has one that uploads the plot. A finger scrolls, it does not zoom.
const CONFIG = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [TOUCH.matches ? ["toImage"] : ["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

// Plotly reads a little HTML in any text; strings from data are shown as they are.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// ── the page's colours, whatever the theme ───────────────────────────────────────────────────────────────────

function theme() {
  const card = getComputedStyle(document.querySelector(".card"));
  return { ink: card.color, paper: card.backgroundColor, line: card.borderTopColor, font: card.fontFamily };
}

const brightness = (rgb) => rgb.match(/\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 765;

// The palette's two darkest colours would drown on a dark page.
const LIGHTER = { "#4c4c4c": "#c8c8c8", "#0072b2": "#3a8fd0" };

function colourOf(method) {
  const { colour } = METHODS.get(method);
  return brightness(theme().paper) < 0.5 ? LIGHTER[colour] ?? colour : colour;
}

const faint = (colour) => `${colour}26`;
const pale = (colour) => `${colour}99`;

// ── series: something drawn, with the look it has everywhere ─────────────────────────────────────────────────

// Colour and symbol say the method, hollow marks that it has no memory, dashes tell its configurations apart.
function looks(configurations, names) {
  const count = new Map();
  return configurations.map((each, i) => {
    const number = count.get(each.method) ?? 0;
    count.set(each.method, number + 1);
    const { symbol } = METHODS.get(each.method);
    return { name: names[i], colour: colourOf(each.method), symbol, hollow: isHollow(each),
             dash: DASHES[number % DASHES.length] };
  });
}

// Hollow markers would mean nothing where no configuration has a memory.
const isHollow = (each) => each.size === null && each.section.configurations.some((other) => other.size !== null);

const marker = (look, size) => ({
  color: look.colour, size, symbol: look.symbol + (look.hollow ? "-open" : ""), line: { width: 1.6, color: look.colour },
});

// A line through means with a band of one standard deviation. Points are { x, mean, deviation, text }.
// Many overlapping bands would hide the curves; then there are none.
function curves(series, pointsOf) {
  return series.flatMap((look, i) => {
    const traces = curve(look, pointsOf(i));
    return series.length > CROWD ? traces.slice(-1) : traces;
  });
}

function curve(look, points) {
  const there = points.filter((point) => point.mean !== null);
  const spread = there.filter((point) => point.deviation !== null);
  const band = {
    x: [...spread, ...spread.toReversed()].map((point) => point.x),
    y: [...spread.map((p) => p.mean + p.deviation), ...spread.toReversed().map((p) => p.mean - p.deviation)],
    mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: faint(look.colour), hoverinfo: "skip",
  };
  const line = {
    x: there.map((point) => point.x), y: there.map((point) => point.mean),
    text: there.map((point) => point.text), hoverinfo: "text", name: plain(look.name),
    mode: "lines+markers", marker: marker(look, 7), line: { color: look.colour, width: 1.8, dash: look.dash },
  };
  if (spread.length > 1) return [band, line];
  return [{ ...line, error_y: errorBar(pale(look.colour), there.map((point) => point.deviation)) }];
}

const errorBar = (colour, values) => ({ type: "data", array: values.map((v) => v ?? 0), color: colour, thickness: 1, width: 3 });

const hover = (each, ...lines) => [`<b>${plain(fullName(each))}</b>`, ...lines].join("<br>");

// ── accuracy of every task over time ─────────────────────────────────────────────────────────────────────────

function accuracyOverTime(section) {
  const shown = selected(section).filter((each) => mean(each[chosen.head].A) !== null);
  const series = looks(shown, shortNames(shown));
  const steps = Array.from({ length: section.tasks }, (_, k) => k);
  // Stopped runs are excluded from means, so that every point of a curve averages over the same runs.
  const complete = (each, values) => values.filter((_, i) => each[chosen.head].A[i] !== null);
  const panel = (title, from, valuesAt) => ({
    title,
    traces: curves(series, (i) => steps.slice(from).map((k) => {
      const values = complete(shown[i], valuesAt(shown[i][chosen.head], k)).map((value) => value * 100);
      const point = { mean: mean(values), deviation: deviation(values) };
      return { x: k + 1, ...point, text: hover(shown[i], `after task ${k + 1}: ${written(point, 1)} %`) };
    })),
    xaxis: { title: { text: "tasks learned" }, range: [0.8, section.tasks + 0.2],
             ...(section.tasks <= 12 ? { tickvals: steps.map((k) => k + 1) } : {}) },
    yaxis: { ticksuffix: " %" },
  });
  const panels = [...section.chosen.panels].sort((a, b) => a - b).map((j) => j < section.tasks
    ? panel(taskName(section, j), j, (head, k) => head.accuracy.map((a) => a[k][j]))
    : panel("Average A<sub>k</sub>", 0, (head, k) => head.average.map((a) => a[k])));
  shareRange(panels);
  return { panels: shown.length ? panels : [], legend: series, csv: () => accuracyCsv(shown) };
}

function taskName(section, j) {
  const classes = section.classes[j];
  return `Task ${j + 1}${classes ? `: ${plain(classes.length > 24 ? `${classes.slice(0, 23)}…` : classes)}` : ""}`;
}

// Small multiples are compared: one scale for all.
function shareRange(panels) {
  const values = panels.flatMap((panel) => panel.traces.flatMap((trace) => trace.y.flatMap((value, i) => {
    const reach = trace.error_y?.array[i] ?? 0;
    return value === null ? [] : [value - reach, value + reach];
  })));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = Math.max(1, (high - low) * 0.06);
  for (const panel of panels) panel.yaxis.range = [low - margin, high + margin];
}

// ── the plane of forgetting and intransigence ────────────────────────────────────────────────────────────────

function plane(section) {
  const [, F, I] = MEASURES;
  const shown = selected(section).filter((each) => statistic(each, F).mean !== null && statistic(each, I).mean !== null);
  const series = looks(shown, shortNames(shown));
  const points = shown.map((each) => ({ f: statistic(each, F), i: statistic(each, I) }));
  const traces = shown.map((each, n) => ({
    x: [points[n].i.mean], y: [points[n].f.mean],
    error_x: errorBar(pale(series[n].colour), [points[n].i.deviation]),
    error_y: errorBar(pale(series[n].colour), [points[n].f.deviation]),
    mode: "markers", name: plain(series[n].name), marker: marker(series[n], 11), hoverinfo: "text",
    text: [hover(each, `forgetting ${written(points[n].f, 3)}`, `intransigence ${written(points[n].i, 3)}`)],
  }));
  const xaxis = { title: { text: "intransigence I" }, range: around(points.map((p) => p.i)), zeroline: false };
  const yaxis = { title: { text: "forgetting F" }, range: around(points.map((p) => p.f)), zeroline: false };
  const panel = { title: "", tall: true, traces, xaxis, yaxis, ...quadrants(xaxis.range, yaxis.range) };
  return { panels: shown.length ? [panel] : [], legend: series.map((look) => ({ ...look, dash: null })),
           csv: () => measuresCsv(shown) };
}

// A range that has all points and, with room for a name on both its sides, zero.
function around(statistics) {
  const ends = statistics.flatMap(({ mean, deviation }) => [mean - (deviation ?? 0), mean + (deviation ?? 0)]);
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const room = Math.max(0.3 * (high - low), 0.01);
  return [low - room, high + room];
}

function quadrants([left, right], [bottom, top]) {
  const { line, ink } = theme();
  const axis = { type: "line", line: { color: ink, width: 1 }, opacity: 0.5, layer: "below" };
  const ideal = { type: "rect", x0: left, x1: 0, y0: bottom, y1: 0, fillcolor: "#009e7322", line: { width: 0 }, layer: "below" };
  const name = (text, x, y) => ({ text, x, y, xref: "paper", yref: "paper", xanchor: x ? "right" : "left",
                                  yanchor: y ? "top" : "bottom", showarrow: false, opacity: 0.65, font: { size: 11 } });
  return {
    shapes: [ideal, { ...axis, x0: left, x1: right, y0: 0, y1: 0 }, { ...axis, x0: 0, x1: 0, y0: bottom, y1: top },
             { type: "circle", xsizemode: "pixel", ysizemode: "pixel", xanchor: 0, yanchor: 0, x0: -4, x1: 4, y0: -4, y1: 4,
               fillcolor: ink, line: { color: line } }],
    annotations: [name("PBT, PFT", 0, 0), name("PBT, NFT", 1, 0), name("NBT, PFT", 0, 1), name("NBT, NFT", 1, 1),
                  { text: "(0, 0)", x: 0, y: 0, xanchor: "left", yanchor: "top", showarrow: false, xshift: 4, yshift: -4,
                    opacity: 0.65, font: { size: 10 } }],
  };
}

// ── the three measures against a number: λ, or the size of the memory ────────────────────────────────────────

// `families` are lists of configurations that differ in `value` alone; `names` has one per family.
function measuresAgainst(value, title, families, names) {
  const series = looks(families.map((family) => family[0]), names);
  const values = [...new Set(families.flat().map(value))].sort((a, b) => a - b);
  const ticks = values.length <= 8 ? { tickvals: values, ticktext: values.map(String) } : { dtick: 1 };
  const panels = MEASURES.map((measure) => ({
    title: `${measure.name} ${measure.key}${measure.unit}`,
    traces: curves(series, (i) => families[i].toSorted((a, b) => value(a) - value(b)).map((each) => {
      const point = statistic(each, measure);
      return { x: value(each), ...point, text: hover(each, `${measure.name} ${written(point, measure.digits)}${measure.unit}`) };
    })),
    xaxis: { title: { text: title }, type: "log", ...ticks },
    yaxis: {},
  }));
  return panels.filter((panel) => panel.traces.some((trace) => trace.y.length))
    .map((panel) => ({ ...panel, series }));
}

// The families of the chosen memory or, where it has none, all: a sweep is often made with one memory only.
function narrowed(families, section, aspect) {
  const example = section.configurations.find((each) => each.memory === section.chosen.memory);
  const own = families.filter(([first]) => example && aspect(first) === aspect(example));
  return own.length ? own : families;
}

function lambdaCurves(section) {
  const sweeps = [...grouped(ofChosenMethods(section).filter((each) => each.lam > 0),
                             (each) => identity(each.method, each.memory, each.settings)).values()]
    .filter((family) => distinct(family, (each) => each.lam).length > 1);
  const families = narrowed(sweeps, section, (each) => each.memory);
  const names = shortNames(families.map((family) => family[0]), [memory, (each) => each.settings]);
  return assembled(measuresAgainst((each) => each.lam, "λ", families, names), families.flat());
}

function sampleCurves(section) {
  const shown = best(ofChosenMethods(section).filter((each) => each.size !== null),
                     (each) => identity(each.method, each.sampler, each.unit, each.size));
  const all = [];
  const panels = [...grouped(shown, (each) => each.unit)].flatMap(([unit, ofUnit]) => {
    const sizes = [...grouped(ofUnit, (each) => identity(each.method, each.sampler)).values()]
      .filter((family) => family.length > 1);
    const families = narrowed(sizes, section, (each) => each.sampler);
    all.push(...families.flat());
    const names = shortNames(families.map((family) => family[0]), [(each) => each.sampler]);
    return measuresAgainst((each) => each.size, `exemplars ${unit}`, families, names);
  });
  return assembled(panels, all);
}

// ── samplers, side by side for each size of the memory ───────────────────────────────────────────────────────

function samplerComparison(section) {
  const [A] = MEASURES;
  const shown = best(ofChosenMethods(section).filter((each) => each.size !== null),
                     (each) => identity(each.method, each.sampler, each.unit, each.size));
  // A method is compared with itself: one that was run with one sampler says nothing about samplers.
  const compared = [...grouped(shown, (each) => identity(each.method, each.unit, each.size)).values()]
    .filter((own) => own.length > 1).flat();
  const sizes = [...grouped(compared, (each) => `${each.size} ${each.unit}`)]
    .sort(([, [one]], [, [other]]) => one.size - other.size);
  const panels = sizes.map(([size, ofSize]) => {
    const families = [...grouped(ofSize, (each) => each.method).values()];
    const series = looks(families.map((family) => family[0]), families.map((family) => family[0].label));
    return {
      title: `${plain(size)}: accuracy A %`,
      series: series.map((look) => ({ ...look, dash: null })),
      traces: families.map((family, i) => {
        const points = family.map((each) => statistic(each, A));
        return {
          x: family.map((each) => plain(each.sampler)), y: points.map((point) => point.mean),
          error_y: errorBar(series[i].colour, points.map((point) => point.deviation)), hoverinfo: "text",
          text: family.map((each, n) => hover(each, `accuracy ${written(points[n], 1)} %`)),
          mode: "markers", marker: marker(series[i], 9), name: plain(series[i].name), offsetgroup: String(i),
        };
      }),
      xaxis: { type: "category" },
      yaxis: {},
      scattermode: "group",
    };
  });
  shareRange(panels);
  return assembled(panels, sizes.flatMap(([, ofSize]) => ofSize));
}

function assembled(panels, configurations) {
  const legend = grouped(panels.flatMap((panel) => panel.series), (look) => look.name);
  return { panels, legend: [...legend.values()].map(([look]) => look), csv: () => measuresCsv(configurations) };
}

const PLOTS = { accuracy: accuracyOverTime, plane, lambda: lambdaCurves, samples: sampleCurves, samplers: samplerComparison };

// ── drawing: at once what is in sight, the rest when it comes into sight or goes to a printer ────────────────

const waiting = new Map(); // panel → how to draw it
const sight = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawNow(entry.target)),
  { rootMargin: "400px" },
);

function drawSoon(panel, how) {
  waiting.set(panel, how);
  sight.unobserve(panel); // observed anew, it is reported anew, even if it never left
  sight.observe(panel);
}

function drawNow(panel) {
  waiting.get(panel)?.();
  waiting.delete(panel);
}

function drawAll() {
  for (const panel of [...waiting.keys()]) drawNow(panel);
}

function draw(figure, section) {
  const plot = PLOTS[figure.dataset.kind](section);
  figure.hidden = !plot.panels.length;
  figure.csv = plot.csv;
  const holder = figure.querySelector(".panels");
  while (holder.children.length > plot.panels.length) discard(holder.lastChild);
  while (holder.children.length < plot.panels.length) holder.append(document.createElement("div"));
  plot.panels.forEach((panel, i) => {
    const div = holder.children[i];
    div.className = panel.tall ? "panel tall" : "panel";
    drawSoon(div, () => Plotly.react(div, panel.traces, layout(panel, div), CONFIG));
  });
  figure.querySelector(".legend").replaceChildren(...plot.legend.map(legendEntry));
}

function discard(panel) {
  sight.unobserve(panel);
  waiting.delete(panel);
  Plotly.purge(panel);
  panel.remove();
}

function layout(panel, div) {
  const { ink, paper, line, font } = theme();
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, title: { standoff: 8 } };
  const merged = (own) => ({ ...axis, ...own, title: { ...axis.title, ...own.title } });
  return {
    width: div.clientWidth, height: div.clientHeight,
    margin: { l: 44, r: 10, t: 34, b: 40 },
    paper_bgcolor: paper, plot_bgcolor: paper, font: { family: font, size: 12, color: ink },
    title: { text: panel.title, font: { size: 13 }, xref: "paper", x: 0, xanchor: "left", y: 0.97, yanchor: "top" },
    xaxis: merged(panel.xaxis), yaxis: merged(panel.yaxis),
    shapes: panel.shapes ?? [], annotations: panel.annotations ?? [],
    showlegend: false, hovermode: "closest", hoverlabel: { align: "left" }, dragmode: TOUCH.matches ? false : "zoom",
    modebar: { bgcolor: "transparent", color: line, activecolor: ink },
    ...(panel.scattermode ? { scattermode: panel.scattermode } : {}),
  };
}

function legendEntry(look) {
  const entry = document.createElement("span");
  entry.append(swatch(look), look.name);
  return entry;
}

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
const STROKES = { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3" };

// A sample of a line and its mark; the mark alone where there is no line (dash null).
function swatch({ colour, symbol, hollow, dash }) {
  const svg = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const wide = dash ? 15 : 6;
  const picture = svg("svg", { viewBox: `${-wide} -6 ${2 * wide} 12`, width: 2 * wide, height: 12, "aria-hidden": "true" });
  if (dash) picture.append(svg("path", { d: `M${-wide} 0H${wide}`, stroke: colour, "stroke-width": 2, "stroke-dasharray": STROKES[dash] }));
  picture.append(svg("path", { d: SHAPES[symbol], fill: hollow ? "none" : colour, stroke: colour, "stroke-width": 1.4 }));
  return picture;
}
