// The plots: each kind is a function from a section to panels; figure_export.js draws any of them.
//
// It returns { panels, legend, csv, note }; without panels, the figure is hidden.

const METHODS = new Map(report.methods.map((method) => [method.id, method]));
const CURVES = 10; // in one panel: more cannot be told apart
const LINES = 24; // of a plot with one line per configuration
const NARROW = matchMedia("(max-width: 640px)");
const [A, F, I] = MEASURES;

// ── looks: a method looks the same in all figures ───────────────────────────────────────────────────────────

const colourOf = (method) => `var(--c${METHODS.get(method).colour})`;

// A colour and a symbol per method, hollow marks for those without a memory, dashes for configurations of one method.
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

// Hollow marks would mean nothing where no configuration has a memory.
const isHollow = (each) => each.size === null && each.section.someMemory;

const marksOnly = (series) => series.map((look) => ({ ...look, dash: null }));
const told = (each, ...lines) => [fullName(each), ...lines].join("\n");

// As many as there is room for, in the table's order, and a note about the rest; files have all.
function few(configurations, most) {
  const note = configurations.length > most
    ? `The first ${most} of ${configurations.length}, in the table’s order: sort or filter it to see others.` : "";
  return { shown: configurations.slice(0, most), all: configurations, note };
}

const withAccuracy = (section) => selected(section).filter((each) => statistic(each, A).mean !== null);

// ── every task over time: its accuracy, or how much of it was forgotten ──────────────────────────────────────

const OVER_TIME = {
  accuracy: { at: (a, k, j) => a[k][j], from: 0, average: "average A of all tasks so far" },
  forgetting: {
    // The best accuracy a task has had before, minus the one it has after task k.
    at: (a, k, j) => a[k][j] === null ? null : Math.max(...measured(a.slice(j, k).map((row) => row[j]))) - a[k][j],
    from: 1, average: "average F of all earlier tasks",
  },
};

function overTime(section) {
  const { shown, all, note } = few(withAccuracy(section), CURVES);
  const series = looks(shown, shortNames(shown));
  const { at, from, average } = OVER_TIME[section.chosen.over];
  // Stopped runs are excluded from means, so that every point of a curve averages over the same runs.
  const complete = (each) => each[chosen.head].accuracy.filter((_, i) => each[chosen.head].A[i] !== null);
  const tasks = Array.from({ length: section.tasks }, (_, k) => k);
  const panel = (title, first, valueOf) => ({
    title,
    x: { label: "tasks learned", range: [0.8, section.tasks + 0.2], ticks: tasks.map((k) => k + 1) },
    y: { suffix: " %" },
    series: series.map((look, i) => ({
      look, line: true, band: true, size: section.tasks > 12 ? 0.6 : 0.85,
      points: tasks.slice(first).map((k) => {
        const values = complete(shown[i]).map((a) => valueOf(a, k) * 100);
        const [y, dy] = [mean(values), deviation(values)];
        return { x: k + 1, y, dy, text: told(shown[i], `after task ${k + 1}: ${written({ mean: y, deviation: dy }, 1)} %`) };
      }),
    })),
  });
  const panels = tasksShown(section).flatMap((j) => {
    if (j < section.tasks) {
      return j + from < section.tasks ? [panel(taskName(section, j), j + from, (a, k) => at(a, k, j))] : [];
    }
    const meanOf = (a, k) => mean(tasks.slice(0, k + 1 - from).map((task) => at(a, k, task)));
    return section.tasks > from ? [panel(average, from, meanOf)] : [];
  });
  shareRange(panels);
  return { panels: shown.length ? panels : [], legend: series, csv: () => accuracyCsv(all), note };
}

// Tasks, and their average last; of many tasks, or on a phone, a few.
function tasksShown({ tasks }) {
  if (tasks <= 5 && !NARROW.matches) return Array.from({ length: tasks + 1 }, (_, j) => j);
  return [...new Set([0, ...(NARROW.matches ? [] : [Math.floor((tasks - 1) / 2), tasks - 1]), tasks])];
}

const taskName = (section, j) => `task ${j + 1}${section.classes[j] ? `: ${section.classes[j]}` : ""}`;

// Small multiples are compared: one scale for all.
function shareRange(panels) {
  const values = panels.flatMap((panel) => panel.series.flatMap((series) => series.points
    .filter((point) => point.y !== null).flatMap((point) => [point.y - (point.dy ?? 0), point.y + (point.dy ?? 0)])));
  for (const panel of panels) panel.y.range = rangeOf(values, { least: 1 });
}

// ── the accuracy matrix: one configuration's whole, and all configurations after one task ────────────────────

function matrix(section) {
  const all = withAccuracy(section);
  if (!all.length || section.tasks < 2) return { panels: [], legend: [] };
  const { shown, note } = few(all, LINES);
  const own = all.find((each) => each.number === section.chosen.matrix) ?? all[0];
  const last = section.tasks - 1;
  const columns = Array.from({ length: section.tasks }, (_, j) => `task ${j + 1}`);
  const accuracyOf = (each, k, j) => mean(each[chosen.head].accuracy.map((a) => a[k][j]));
  const cell = (each, row, k, column) => {
    const value = accuracyOf(each, k, column);
    const shown = value === null ? "–" : (value * 100).toFixed(section.tasks > 12 ? 0 : 1);
    return { row, column, value: value ?? 0, shown,
             text: told(each, `task ${column + 1} after task ${k + 1}: ${shown} %`) };
  };
  const upTo = (k) => columns.slice(0, k + 1).map((_, j) => j);
  const names = shortNames(all);
  const whole = {
    title: `${names[all.indexOf(own)]}: accuracy, %`, columns, rows: columns.map((_, k) => `after task ${k + 1}`),
    cells: columns.flatMap((_, k) => upTo(k).map((j) => cell(own, k, k, j))), lines: section.tasks,
  };
  const everyone = {
    title: "all, after the last task: accuracy, %", columns, rows: names.slice(0, shown.length),
    cells: shown.flatMap((each, row) => upTo(last).map((j) => cell(each, row, last, j))), lines: shown.length,
  };
  return { panels: [whole, everyone], legend: [], csv: () => accuracyCsv(all), note };
}

// ── the plane of forgetting and intransigence ────────────────────────────────────────────────────────────────

function plane(section) {
  const shown = selected(section).filter((each) => statistic(each, F).mean !== null && statistic(each, I).mean !== null);
  const series = looks(shown, shortNames(shown));
  const many = shown.length > 40; // so many whiskers would be all there is to see
  const points = shown.map((each) => ({ f: statistic(each, F), i: statistic(each, I) }));
  const ends = (key) => points.flatMap((point) => [point[key].mean - (many ? 0 : point[key].deviation ?? 0),
                                                   point[key].mean + (many ? 0 : point[key].deviation ?? 0)]);
  const panel = {
    title: "", about: "forgetting against intransigence", tall: true,
    x: { label: "intransigence I", range: around(ends("i")) }, y: { label: "forgetting F", range: around(ends("f")) },
    behind: quadrants,
    series: [...grouped(shown.map((_, n) => n), (n) => many ? shown[n].method : n).values()].map((own) => ({
      look: series[own[0]], size: 1.3, points: own.map((n) => ({
        x: points[n].i.mean, y: points[n].f.mean,
        dx: many ? null : points[n].i.deviation, dy: many ? null : points[n].f.deviation,
        text: told(shown[n], `forgetting ${written(points[n].f, 3)}`, `intransigence ${written(points[n].i, 3)}`) })) })),
  };
  return { panels: shown.length ? [panel] : [], legend: many ? [] : marksOnly(series), csv: () => measuresCsv(shown) };
}

// A range that has all points and, with room for words on both its sides, zero.
function around(ends) {
  const [low, high] = ends.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [0, 0]);
  const room = Math.max(0.16 * (high - low), 0.01);
  return [low - room, high + room];
}

function quadrants(x, y, { left, right, top, bottom }) {
  const words = (text, right_, down) => label(text, right_ ? right - 6 : left + 6, down ? bottom - 8 : top + 14,
                                              { "text-anchor": right_ ? "end" : "start", "font-style": "italic",
                                                stroke: "var(--card)", "stroke-width": 4, "paint-order": "stroke" });
  const half = NARROW.matches;
  return [
    svg("path", { d: `M${x(0)} ${top}V${bottom}M${left} ${y(0)}H${right}`, stroke: "var(--quiet)", "stroke-width": 1.2 }),
    svg("circle", { cx: x(0), cy: y(0), r: 3.5, fill: "var(--quiet)" }),
    words(half ? "forgets, learns less" : "forgets the old, learns the new less well", true, false),
    words(half ? "gains, learns better" : "improves the old, learns the new better", false, true),
    ...(half ? [] : [words("forgets the old, learns the new better", false, false),
                     words("improves the old, learns the new less well", true, true)]),
  ];
}

// ── the three measures against λ ─────────────────────────────────────────────────────────────────────────────

function lambdaCurves(section) {
  const sweeps = [...grouped(ofChosenMethods(section).filter(hasLambda),
                             (each) => identity(each.study, each.method, each.memory, each.settings)).values()]
    .filter((family) => distinct(family, (each) => each.lam).length > 1);
  // Those of the chosen memory or, where it has none, all: a sweep is often made with one memory only.
  const own = sweeps.filter(([first]) => first.memory === section.chosen.memory);
  const { shown: families, note } = few(own.length ? own : sweeps, CURVES);
  const series = looks(families.map((family) => family[0]),
                       shortNames(families.map((family) => family[0]), [memory, settings, study]));
  const lams = [...new Set(families.flat().map((each) => each.lam))].sort((a, b) => a - b);
  const panels = section.measures.map((measure) => {
    const drawn = families.map((family, i) => ({ look: series[i], line: true, band: true, points: family
      .toSorted((a, b) => a.lam - b.lam).map((each) => {
        const point = statistic(each, measure);
        return { x: each.lam, y: point.mean, dy: point.deviation,
                 text: told(each, `${measure.name} ${written(point, measure.digits)}${measure.unit}`) };
      }).filter((point) => point.y !== null) })).filter(({ points }) => points.length);
    const ends = drawn.flatMap(({ points }) => points.flatMap(({ y, dy }) => [y - (dy ?? 0), y + (dy ?? 0)]));
    return { title: `${measure.name} ${measure.key}${measure.unit}`, series: drawn,
             x: { label: "λ", type: "log", range: rangeOf(lams, { log: true }), ...(lams.length <= 12 ? { ticks: lams } : {}) },
             y: { range: rangeOf(ends) } };
  });
  return { panels: panels.filter((panel) => panel.series.length), legend: series, csv: () => measuresCsv(families.flat()), note };
}

// ── losses, where the study's folder has them ────────────────────────────────────────────────────────────────

function lossCurves(section) {
  const { shown, all, note } = few(selected(section).filter((each) => each.losses?.mean.some((loss) => loss > 0)), CURVES);
  const series = looks(shown, shortNames(shown));
  const curves = shown.map(({ losses }) => losses.step.map((x, i) => ({ x, y: losses.mean[i], dy: losses.deviation[i] })));
  const values = curves.flat().map((point) => point.y).filter((loss) => loss > 0);
  const log = values.length && Math.max(...values) > 30 * Math.min(...values);
  const last = Math.max(...curves.flat().map((point) => point.x));
  const panel = {
    title: "", about: "training loss by step",
    x: { label: "steps, over all tasks", range: [0, last] },
    y: { label: "loss", type: log ? "log" : "linear", range: log ? rangeOf(values, { log }) : rangeOf(values, { zero: true }) },
    series: series.map((look, i) => ({ look, line: true, size: 0, points: curves[i].filter(({ y }) => !log || y > 0)
      .map(({ x, y, dy }) => ({ x, y, text: told(shown[i], `step ${x}: ${written({ mean: y, deviation: dy }, 3)}`) })) })),
  };
  return { panels: shown.length ? [panel] : [], legend: series, csv: () => lossesCsv(all), note };
}

const PLOTS = { accuracy: overTime, matrix, plane, lambda: lambdaCurves, losses: lossCurves };
