// The page: controls, printing. `refresh` redraws everything from the reader's choices.

const sectionsOnPage = [...document.querySelectorAll("section[data-section]")]
  .map((element) => ({ element, section: report.sections[Number(element.dataset.section)] }));

function refresh() {
  for (const verdict of document.querySelectorAll("[data-verdict]")) verdict.hidden = verdict.dataset.verdict !== chosen.head;
  const distance = ({ element }) => Math.abs(element.getBoundingClientRect().top);
  for (const { element, section } of sectionsOnPage.toSorted((a, b) => distance(a) - distance(b))) refreshSection(element, section);
}

// The table at once; the rest a moment later, so that a click never waits for figures that are out of sight.
function refreshSection(element, section) {
  section.selected = null;
  showTable(element.querySelector(".results"), section);
  const hyper = element.querySelector(".hyper");
  soon(hyper, () => showHyper(hyper, section));
  soon(element, () => showConfigurations(element, section));
  for (const figure of element.querySelectorAll("figure")) soon(figure, () => draw(figure, section));
}

// ── controls of the page ─────────────────────────────────────────────────────────────────────────────────────

// The boxes double as the page's legend.
function prepareMethods() {
  document.getElementById("methods")?.append(...report.methods.map(({ id, name, symbol }) => {
    const box = made("input", { type: "checkbox", value: id, checked: chosen.methods.has(id) });
    box.addEventListener("change", () => {
      chosen.methods[box.checked ? "add" : "delete"](id);
      refresh();
    });
    return made("label", {}, box, made("span", {}, swatch({ colour: colourOf(id), symbol, dash: null }), name));
  }));
}

document.getElementById("heads")?.addEventListener("change", (event) => {
  chosen.head = event.target.value;
  refresh();
});

// ── controls of a section ────────────────────────────────────────────────────────────────────────────────────

function prepareSection(element, section) {
  prepareTable(element, section);
  const redraw = (kind) => draw(element.querySelector(`figure[data-kind=${kind}]`), section);
  const choose = (selector, name, kind, parse = (value) => value) => {
    element.querySelector(selector).addEventListener("input", (event) => {
      section.chosen[name] = parse(event.target.value);
      redraw(kind);
    });
  };
  choose(".over select", "over", "accuracy");
  choose(".which select", "matrix", "matrix", Number);
  element.querySelector(".over").hidden = section.tasks < 2;
  for (const figure of element.querySelectorAll("figure")) {
    prepareExports(figure, section);
    figure.querySelector("details").addEventListener("toggle", () => showNumbers(figure));
  }
}

function prepareTable(element, section) {
  const results = element.querySelector(".results");
  const memories = [...grouped(section.configurations, (each) => each.memory)];
  section.chosen.memory = section.memory; // as the verdict has it
  const select = results.querySelector(".memory select");
  select.append(made("option", { value: "" }, "all"), ...memories.map(([name]) => made("option", { value: name }, name)));
  select.value = section.chosen.memory;
  results.querySelector(".memory").hidden = memories.length < 2;
  const families = distinct(section.configurations, (each) => identity(each.study, each.method, each.memory));
  results.querySelector(".variants").hidden = families.length === section.configurations.length;
  for (const name of ["memory", "variants"]) {
    results.querySelector(`.${name} select`).addEventListener("change", (event) => {
      section.chosen[name] = event.target.value;
      section.chosen.rows = ROWS_AT_ONCE;
      refreshSection(element, section);
    });
  }
  results.querySelector(".more").addEventListener("click", () => {
    section.chosen.rows += ROWS_AT_ONCE;
    showRows(results, section, section.chosen.rows - ROWS_AT_ONCE);
  });
  results.querySelector(".csv").addEventListener("click", () =>
    download(tableCsv(section), `${fileName(section, "table", chosen.head)}.csv`, "text/csv"));
  results.querySelector(".latex").addEventListener("click", () =>
    download(tableLatex(section), `${fileName(section, "table", chosen.head)}.tex`, "application/x-tex"));
}

const OPTIONS = 300; // of a list to choose from

// The configuration of the left matrix: one of those in the table.
function showConfigurations(element, section) {
  const shown = withAccuracy(section).slice(0, OPTIONS);
  const names = new Map(shortNames(shown).map((name, i) => [shown[i], name]));
  const select = element.querySelector(".which select");
  if (!shown.some((each) => each.number === section.chosen.matrix)) section.chosen.matrix = shown[0]?.number ?? null;
  select.replaceChildren(...shown.map((each) =>
    made("option", { value: each.number, selected: each.number === section.chosen.matrix }, names.get(each))));
}

// ── size, printing ────────────────────────────────────────────────────────────────────────────────────

const root = document.documentElement;

// Charts have a size in pixels: for another width, and for paper, they are drawn again.
function redrawFigures() {
  for (const { element, section } of sectionsOnPage) {
    for (const figure of element.querySelectorAll("figure")) if (figure.plot) draw(figure, section);
  }
}

let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) redrawFigures();
  width = innerWidth;
});

function printing(now) {
  root.classList.toggle("printing", now);
  redrawFigures();
  if (now) drawAll();
}
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));

// ── start ────────────────────────────────────────────────────────────────────────────────────────────────────

prepareMethods();
for (const { element, section } of sectionsOnPage) prepareSection(element, section);
refresh();
root.dataset.ready = "";
