// The table of results, and the hyper-parameters.

function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────

function columns(section) {
  const some = (key) => section.configurations.some((each) => each[key] && each[key] !== "none");
  const lambdas = section.configurations.some(hasLambda);
  const runs = (each) => measured(each[chosen.head].A).length;
  return [
    { name: "method", value: (each) => each.label, cell: methodCell },
    some("study") && { name: "study", aside: true, value: study, cell: study },
    lambdas && { name: "λ", number: true, aside: true, value: (each) => each.lam, cell: (each) => hasLambda(each) ? each.strength : "–" },
    some("memory") && { name: "memory", aside: true, value: (each) => each.size ?? 0, cell: (each) => memory(each) || "–" },
    ...section.measures.map((measure) => ({
      name: measure.name, number: true, measure, value: (each) => statistic(each, measure).mean,
      cell: (each) => measureCell(each, measure),
    })),
    { name: "seeds", number: true, aside: true, value: runs,
      cell: (each) => runs(each) === each.seeds.length ? String(runs(each)) : `${runs(each)} of ${each.seeds.length}` },
    some("settings") && { name: "settings", aside: true, long: true, value: settings, cell: settings },
  ].filter(Boolean);
}

// On a phone, where the columns aside have no room, the method's cell has their content.
function methodCell(each) {
  const { symbol, name } = METHODS.get(each.method);
  const aside = [lambda(each), memory(each), each.settings, each.study].filter(Boolean).join(", ");
  return made("span", { className: "method" },
              swatch({ colour: colourOf(each.method), symbol, hollow: isHollow(each), dash: null }),
              made("span", {}, name, made("small", { className: "narrow" }, aside)));
}

function measureCell(each, measure) {
  const { mean, deviation } = statistic(each, measure);
  if (mean === null) return "–";
  const spread = deviation === null ? [] : [" ", made("span", { className: "spread" }, `± ${deviation.toFixed(measure.digits)}`)];
  const value = minus(mean.toFixed(measure.digits));
  return made("span", {}, made("span", { className: "value" }, value), ...spread);
}

// ── the table ────────────────────────────────────────────────────────────────────────────────────────────────

function sorted(section, shown) {
  const { sort } = section.chosen;
  const by = sort && columns(section).find((column) => column.name === sort.name);
  return by ? shown.sort((a, b) => compared(by.value(a), by.value(b), sort.descending)) : shown;
}

// Values that were not measured come last, in both orders.
function compared(a, b, descending) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" ? a.localeCompare(b) : a - b;
  return descending ? -order : order;
}

function showTable(card, section) {
  const shown = selected(section);
  const all = columns(section);
  card.querySelector("h3").textContent = section.titles[chosen.head];
  card.querySelector(".choices").hidden = !card.querySelector(".choices label:not([hidden])");
  card.querySelector("output").textContent = `${shown.length} of ${section.configurations.length} configurations`;
  card.querySelector("thead").replaceChildren(made("tr", {}, ...all.map((column) => headCell(column, card, section))));
  card.querySelector("tbody").replaceChildren();
  showRows(card, section, 0);
}

// The rows from this one on, as many as are to be shown.
function showRows(card, section, from) {
  const [shown, all] = [selected(section), columns(section)];
  const winners = new Map(all.filter((column) => column.measure).map((column) => [column, winner(column, shown)]));
  const visible = shown.slice(from, section.chosen.rows);
  card.querySelector("tbody").append(...visible.map((each) => made("tr", {}, ...all.map((column, i) => {
    const value = column.measure && column.value(each);
    const best = column.measure && value !== null && minus(value.toFixed(column.measure.digits)) === winners.get(column);
    const content = column.cell(each);
    const kind = kindOf(column);
    return i ? made("td", { className: kind }, best ? made("strong", {}, content) : content)
             : made("th", { className: kind, scope: "row" }, content);
  }))));
  showMore(card, section, shown.length);
}

const kindOf = (column) => ["number", "aside", "long"].filter((kind) => column[kind]).join(" ");

// Thousands of rows at once would make every click wait.
function showMore(card, section, total) {
  const more = card.querySelector(".more");
  more.hidden = total <= section.chosen.rows;
  more.textContent = `Show ${Math.min(ROWS_AT_ONCE, total - section.chosen.rows)} more of ${total}`;
}

// The best value as it prints; all that print the same are best.
function winner(column, shown) {
  const values = measured(shown.map(column.value));
  return values.length ? minus(values.reduce((a, b) => column.measure.better(a, b)).toFixed(column.measure.digits)) : null;
}

function headCell(column, card, section) {
  const { sort } = section.chosen;
  const isSorted = sort?.name === column.name;
  const button = made("button", { type: "button" }, ...headWords(column, section));
  button.addEventListener("click", () => {
    const descending = column.measure?.better === Math.max;
    section.chosen.sort = { name: column.name, descending: isSorted ? !sort.descending : descending };
    refreshSection(card.closest("section"), section);
    [...card.querySelectorAll("thead button")].find((each) => each.textContent === button.textContent)?.focus();
  });
  const cell = made("th", { className: kindOf(column), scope: "col" }, button);
  cell.setAttribute("aria-sort", isSorted ? (sort.descending ? "descending" : "ascending") : "none");
  return cell;
}

function headWords(column, section) {
  if (!column.measure) return [column.name];
  const { key, unit, better } = column.measure;
  return [made("span", { className: "wide" }, `${column.name} `), key, made("sub", {}, String(section.tasks)), unit,
          better === Math.max ? " ↑" : " ↓"];
}

function tableCsv(section) {
  const names = MEASURES.flatMap(({ key }) => [`${key}_mean`, `${key}_sd`]);
  return csv([...IDENTITY, "head", "seeds", ...names], selected(section).map((each) => {
    const values = each[chosen.head];
    return [...identifying(each), chosen.head, measured(values.A).length, ...MEASURES.flatMap(
      ({ key }) => [mean(values[key]), deviation(values[key])])];
  }));
}

// The table on the page as LaTeX, for the package booktabs; the best is bold, as on the page.
function tableLatex(section) {
  const [shown, all] = [selected(section), columns(section)];
  const cell = (column, each) => {
    if (!column.measure) return latex(column.name === "method" ? each.label : column.cell(each));
    const { mean, deviation } = statistic(each, column.measure);
    if (mean === null) return "--";
    const printed = minus(mean.toFixed(column.measure.digits));
    const text = printed.replace("−", "-");
    const value = printed === winner(column, shown) ? `\\mathbf{${text}}` : text;
    return `$${value}${deviation === null ? "" : ` \\pm ${deviation.toFixed(column.measure.digits)}`}$`;
  };
  const head = ({ name, measure }) => measure === undefined ? latex(name)
    : `$${measure.key}_{${section.tasks}}$${latex(measure.unit)} $\\${measure.better === Math.max ? "up" : "down"}arrow$`;
  const line = (cells) => `${cells.join(" & ")} \\\\`;
  return ["% \\usepackage{booktabs}", `% ${section.title}, ${section.titles[chosen.head]} Mean and standard deviation over the seeds.`,
          `\\begin{tabular}{${all.map((column) => column.number ? "r" : "l").join("")}}`, "\\toprule", line(all.map(head)), "\\midrule",
          ...shown.map((each) => line(all.map((column) => cell(column, each)))), "\\bottomrule", "\\end{tabular}", ""].join("\n");
}

const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "λ": "$\\lambda$", "–": "--",
                "−": "$-$", "<": "$<$", ">": "$>$", "\u00a0": "~" };
const latex = (text) => text.replace(/[\\~^λ–−<>\u00a0]|[&%$#_{}]/g, (each) => LATEX[each] ?? `\\${each}`);

// ── hyper-parameters, and how they were chosen ───────────────────────────────────────────────────────────────

function showHyper(card, section) {
  const shown = selected(section).filter((each) => each.given || each.usual || each.chosen).slice(0, section.chosen.rows);
  card.hidden = !shown.length;
  const names = shortNames(shown, [memory, settings, study]);
  card.querySelector("tbody").replaceChildren(...shown.map((each, i) => made("tr", {}, made("th", { scope: "row" }, names[i]),
    ...[[each.given], [each.usual, "aside"], [each[chosen.head].choice]].map(([text, kind = ""]) =>
      made("td", { className: `long ${kind}` }, text || "–")))));
}
