// The data of the page: selections of configurations, means over seeds, names, CSV.
"use strict";

const report = JSON.parse(document.getElementById("data").textContent);
const measured = (values) => values.filter((value) => value !== null); // a stopped run has null for the rest
const HEADS = ["single", "multi"];
const MEASURES = [
  { key: "A", name: "accuracy", unit: " %", scale: 100, digits: 1, better: Math.max },
  { key: "F", name: "forgetting", unit: "", scale: 1, digits: 3, better: Math.min },
  { key: "I", name: "intransigence", unit: "", scale: 1, digits: 3, better: Math.min },
];
const ROWS_AT_ONCE = 50; // of a table; a button shows more

// The reader's choices: for the page, and for each section.
const chosen = { head: HEADS[0], methods: new Set(report.methods.map((method) => method.id)) };
for (const section of report.sections) {
  section.chosen = {
    memory: "", variants: "best", sort: null, rows: ROWS_AT_ONCE,
    over: "accuracy", matrix: null,
  };
  for (const each of section.configurations) each.multi ??= each.single; // where both heads agree
  section.configurations.forEach((each, number) => Object.assign(each, { section, number, known: {} }));
  section.measures = MEASURES.filter(({ key }) => section.configurations.some((each) => measured(each.single[key]).length));
  section.someMemory = section.configurations.some((each) => each.size !== null);
}

// ── statistics over seeds ────────────────────────────────────────────────────────────────────────────────────

function mean(values) {
  const there = measured(values);
  return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : null;
}

function deviation(values) {
  const there = measured(values);
  if (there.length < 2) return null;
  const middle = mean(there);
  return Math.sqrt(there.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (there.length - 1));
}

// A measure's values under the chosen head, one per seed, in the measure's own unit.
const valuesOf = (configuration, measure) =>
  configuration[chosen.head][measure.key].map((value) => value === null ? null : value * measure.scale);

// Their mean and deviation; remembered, because sorting thousands of rows asks again and again.
function statistic(configuration, measure) {
  return configuration.known[chosen.head + measure.key] ??= (() => {
    const values = valuesOf(configuration, measure);
    return { mean: mean(values), deviation: deviation(values) };
  })();
}

function written({ mean, deviation }, digits) {
  if (mean === null) return "–";
  return minus(mean.toFixed(digits)) + (deviation === null ? "" : ` ± ${deviation.toFixed(digits)}`);
}

// −0.000 is 0.000, and a minus is not a hyphen.
const minus = (text) => Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");

// ── selections ───────────────────────────────────────────────────────────────────────────────────────────────

function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return groups;
}

const distinct = (items, key) => [...grouped(items, key).keys()];
const identity = (...parts) => JSON.stringify(parts);

const ofChosenMethods = (section) => section.configurations.filter((each) => chosen.methods.has(each.method));

const ofChosenMemory = (section) => ofChosenMethods(section)
  .filter((each) => !section.chosen.memory || each.memory === section.chosen.memory);

// The configurations of the table, in its order; plots without room for all take the first. Computed once per choice.
const selected = (section) => section.selected ??= selection(section);

function selection(section) {
  const all = ofChosenMemory(section);
  return sorted(section, section.chosen.variants === "all" ? all.slice() : all.filter(represents));
}

// Whether Python chose it among the configurations of its study, method and memory (verdict.py).
const represents = (each) => each[chosen.head].represents;

// ── names ────────────────────────────────────────────────────────────────────────────────────────────────────

const lambda = (each) => hasLambda(each) ? `λ ${each.strength}` : "";
const hasLambda = (each) => each.lam && each.method !== "vanilla";
const memory = (each) => each.memory === "none" ? "" : each.memory;
const study = (each) => each.study;
const settings = (each) => each.settings;

// All that distinguishes a configuration from the others.
const fullName = (each) => [each.label, lambda(each), memory(each), each.settings, each.study].filter(Boolean).join(", ");

// The shortest names that are distinct: with an aspect (λ, memory …) only where a label has several.
function shortNames(configurations, aspects = [lambda, memory, settings, study]) {
  const groups = grouped(configurations, (each) => each.label);
  const told = new Map([...groups].map(([label, own]) =>
    [label, aspects.filter((aspect) => distinct(own, aspect).length > 1)]));
  return configurations.map((each) =>
    [each.label, ...told.get(each.label).map((aspect) => aspect(each))].filter(Boolean).join(", "));
}

// ── CSV: one line per seed, at full precision, of what is shown ──────────────────────────────────────────────

const IDENTITY = ["study", "label", "method", "lam", "memory", "size", "unit", "sampler", "settings"];

function csv(header, lines) {
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    if (/^[=+\-@]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`; // not a formula to a spreadsheet
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [header, ...lines].map((line) => line.map(cell).join(",") + "\r\n").join("");
}

const identifying = (each) => IDENTITY.map((name) => each[name]);

function measuresCsv(configurations) {
  const keys = MEASURES.map((measure) => measure.key);
  const more = distinct(configurations.flatMap((each) => Object.keys(each[chosen.head].more)), (key) => key);
  return csv([...IDENTITY, "head", "seed", ...keys, ...more], configurations.flatMap((each) => each.seeds.map(
    (seed, i) => [...identifying(each), chosen.head, seed, ...keys.map((key) => each[chosen.head][key][i]),
                  ...more.map((key) => each[chosen.head].more[key]?.[i])])));
}

function accuracyCsv(configurations) {
  return csv([...IDENTITY, "head", "seed", "after_task", "task", "accuracy"], configurations.flatMap(
    (each) => each.seeds.flatMap((seed, i) => each[chosen.head].accuracy[i].flatMap((row, k) => row.map(
      (value, j) => [...identifying(each), chosen.head, seed, k + 1, j + 1, value])))));
}

function lossesCsv(configurations) {
  return csv([...IDENTITY, "step", "loss_mean", "loss_sd"], configurations.flatMap((each) => each.losses.step.map(
    (step, i) => [...identifying(each), step, each.losses.mean[i], each.losses.deviation[i]])));
}
