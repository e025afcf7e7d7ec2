// The page: controls, tables, downloads, theme, printing. One `refresh` redraws everything from what is chosen.

const sectionsOnPage = [...document.querySelectorAll("section[data-section]")]
  .map((element) => ({ element, section: report.sections[Number(element.dataset.section)] }));

function refresh() {
  showMethods();
  for (const { element, section } of sectionsOnPage) refreshSection(element, section);
}

function refreshSection(element, section) {
  showTable(element.querySelector(".results"), section);
  if (!window.Plotly) return;
  for (const figure of element.querySelectorAll("figure")) draw(figure, section);
}

function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// ── controls ─────────────────────────────────────────────────────────────────────────────────────────────────

// Drawn anew with the theme, as swatches have its colours; the boxes double as the page's legend.
function showMethods() {
  const boxes = report.methods.map(({ name, symbol }) => {
    const box = made("input", { type: "checkbox", value: name, checked: chosen.methods.has(name) });
    box.addEventListener("change", () => {
      chosen.methods[box.checked ? "add" : "delete"](name);
      refresh();
    });
    return made("label", {}, box, made("span", {}, swatch({ colour: colourOf(name), symbol, dash: null }), name));
  });
  const fieldset = document.getElementById("methods");
  const focused = [...fieldset.querySelectorAll("input")].findIndex((box) => box === document.activeElement);
  fieldset.replaceChildren(fieldset.firstElementChild, ...boxes);
  fieldset.querySelectorAll("input")[focused]?.focus();
}

document.getElementById("heads").addEventListener("change", (event) => {
  chosen.head = event.target.value;
  refresh();
});

function prepareSection(element, section) {
  const results = element.querySelector(".results");
  const memories = [...grouped(section.configurations, (each) => each.memory)];
  // All, where a method has one or two (with, and without); of many, the one most methods were run with.
  const usual = memories.reduce((most, each) => count(each) > count(most) ? each : most);
  const several = [...grouped(section.configurations, (each) => each.method).values()]
    .some((own) => distinct(own, (each) => each.memory).length > 2);
  section.chosen.memory = several ? usual[0] : "";
  const select = results.querySelector(".memory select");
  select.append(made("option", { value: "" }, "all"), ...memories.map(([name]) => made("option", { value: name }, name)));
  select.value = section.chosen.memory;
  results.querySelector(".memory").hidden = memories.length < 2;
  const families = distinct(section.configurations, (each) => identity(each.method, each.memory));
  results.querySelector(".variants").hidden = families.length === section.configurations.length;
  for (const name of ["memory", "variants"]) {
    results.querySelector(`.${name} select`).addEventListener("change", (event) => {
      section.chosen[name] = event.target.value;
      refreshSection(element, section);
    });
  }
  results.querySelector(".csv").addEventListener("click", () =>
    download(tableCsv(section), `${fileName(section)}-table-${chosen.head}.csv`));
  preparePanels(element, section);
  for (const figure of element.querySelectorAll("figure")) {
    figure.querySelector(".csv").addEventListener("click", () =>
      download(figure.csv(), `${fileName(section)}-${figure.dataset.kind}-${chosen.head}.csv`));
  }
}

const count = ([, configurations]) => distinct(configurations, (each) => each.method).length;

// Tasks, and their average last, can be switched on and off; many tasks, or a phone, begin with a few.
function preparePanels(element, section) {
  const average = section.tasks;
  const few = NARROW.matches ? [0, average] : [0, Math.floor((section.tasks - 1) / 2), section.tasks - 1, average];
  const all = Array.from({ length: section.tasks + 1 }, (_, j) => j);
  section.chosen.panels = new Set(section.tasks <= 5 && !NARROW.matches ? all : few);
  const chips = all.map((j) => {
    const name = j === average ? "average" : `task ${j + 1}`;
    const chip = made("button", { type: "button", title: section.classes[j] ?? "" }, name);
    chip.setAttribute("aria-pressed", section.chosen.panels.has(j));
    chip.addEventListener("click", () => {
      const shown = section.chosen.panels;
      if (shown.has(j) && shown.size === 1) return;
      shown[shown.has(j) ? "delete" : "add"](j);
      chip.setAttribute("aria-pressed", shown.has(j));
      draw(element.querySelector("figure[data-kind=accuracy]"), section);
    });
    return chip;
  });
  element.querySelector(".chips").replaceChildren(...chips);
}

// ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────

function columns(section, shown) {
  const some = (key) => section.configurations.some((each) => each[key] && each[key] !== "none");
  const runs = (each) => measured(each[chosen.head].A).length;
  return [
    { name: "method", value: (each) => each.label, cell: methodCell },
    { name: "λ", number: true, value: (each) => each.lam, cell: (each) => each.lam ? String(each.lam) : "–" },
    some("memory") && { name: "memory", value: (each) => each.size ?? 0, cell: (each) => memory(each) || "–" },
    ...MEASURES.flatMap((measure) => [{
      name: `${measure.name} ${measure.key}`, index: section.tasks, unit: measure.unit, number: true, measure,
      value: (each) => statistic(each, measure).mean,
      cell: (each) => written(statistic(each, measure), measure.digits),
    }, shown.some((each) => paper(each, measure) !== null) && {
      name: `paper’s ${measure.key}${measure.unit}`, number: true, value: (each) => paper(each, measure),
      cell: (each) => written({ mean: paper(each, measure), deviation: null }, measure.digits),
    }]),
    { name: "seeds", number: true, value: runs,
      cell: (each) => runs(each) === each.seeds.length ? String(runs(each)) : `${runs(each)} of ${each.seeds.length}` },
    some("settings") && { name: "settings", value: (each) => each.settings, cell: (each) => each.settings },
  ].filter(Boolean);
}

function methodCell(each) {
  const { symbol } = METHODS.get(each.method);
  return made("span", { className: "method" },
              swatch({ colour: colourOf(each.method), symbol, hollow: isHollow(each), dash: null }), each.label);
}

function showTable(card, section) {
  const shown = selected(section);
  const all = columns(section, shown);
  const { sort } = section.chosen;
  const by = sort && all.find((column) => column.name === sort.name);
  if (by) shown.sort((a, b) => compared(by.value(a), by.value(b), sort.descending));
  card.querySelector("h3").textContent = report.titles[chosen.head];
  card.querySelector(".choices").hidden = !card.querySelector(".choices label:not([hidden])");
  card.querySelector("output").textContent = `${shown.length} of ${section.configurations.length} shown`;
  card.querySelector("thead").replaceChildren(made("tr", {}, ...all.map((column) => headCell(column, card, section))));
  const winners = new Map(all.filter((column) => column.measure).map((column) => [column, winner(column, shown)]));
  card.querySelector("tbody").replaceChildren(...shown.map((each) => made("tr", {}, ...all.map((column) => {
    const value = column.measure && column.value(each);
    const best = column.measure && value !== null && value.toFixed(column.measure.digits) === winners.get(column);
    const content = column.cell(each);
    return made("td", { className: column.number ? "number" : "" }, best ? made("strong", {}, content) : content);
  }))));
}

// The best value as it prints, so that whatever prints like it is best too.
function winner(column, shown) {
  const values = measured(shown.map(column.value));
  return values.length ? column.measure.better(...values).toFixed(column.measure.digits) : null;
}

// What was not measured comes last, whichever way.
function compared(a, b, descending) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" ? a.localeCompare(b) : a - b;
  return descending ? -order : order;
}

function headCell(column, card, section) {
  const { sort } = section.chosen;
  const sorted = sort?.name === column.name;
  const better = column.measure && (column.measure.better === Math.max ? " ↑" : " ↓");
  const button = made("button", { type: "button" }, column.name,
                      ...(column.measure ? [made("sub", {}, String(column.index)), column.unit, better] : []));
  button.addEventListener("click", () => {
    const descending = column.measure?.better === Math.max;
    section.chosen.sort = { name: column.name, descending: sorted ? !sort.descending : descending };
    showTable(card, section);
    [...card.querySelectorAll("th button")].find((each) => each.textContent === button.textContent).focus();
  });
  const cell = made("th", { className: column.number ? "number" : "", scope: "col" }, button);
  if (sorted) cell.setAttribute("aria-sort", sort.descending ? "descending" : "ascending");
  return cell;
}

function tableCsv(section) {
  const names = MEASURES.flatMap(({ key }) => [`${key}_mean`, `${key}_sd`, `${key}_paper`]);
  return csv([...IDENTITY, "head", "seeds", ...names], selected(section).map((each) => {
    const { paper, ...values } = each[chosen.head];
    return [...identifying(each), chosen.head, measured(values.A).length, ...MEASURES.flatMap(
      ({ key }) => [mean(values[key]), deviation(values[key]), paper?.[key] ?? null])];
  }));
}

// ── downloads, theme, printing ───────────────────────────────────────────────────────────────────────────────

const fileName = (section) => section.title.replace(/[^\p{L}\p{N}.-]+/gu, "-");

function download(text, name) {
  const link = made("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const root = document.documentElement;
const DARK = matchMedia("(prefers-color-scheme: dark)");

document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : DARK.matches;
  root.dataset.theme = dark ? "light" : "dark";
  refresh();
});
DARK.addEventListener("change", refresh);

// Plots have a size in pixels and colours of the theme: for paper they are drawn again.
function printing(now) {
  root.classList.toggle("printing", now);
  refresh();
  if (now) drawAll();
}
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));

// ── start: tables at once, plots when plotly.js is unpacked ──────────────────────────────────────────────────

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

for (const { element, section } of sectionsOnPage) prepareSection(element, section);
refresh();
unpacked("plotly").then((source) => {
  document.head.append(made("script", { text: source }));
  refresh();
  root.dataset.ready = "";
});
