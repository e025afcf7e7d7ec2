// Showing a plot, and taking it away as CSV or SVG.

// ── work that can wait: done in slices, so that the page answers in between ──────────────────────────────────

const SLICE = 20; // milliseconds
const AFTER_PAINT = 40; // milliseconds, in which the browser paints
const queue = new Map(); // element → work; the latest counts
let booked = false;

function soon(key, work) {
  queue.set(key, work);
  if (!booked) setTimeout(nextSlice, AFTER_PAINT);
  booked = true;
}

function nextSlice() {
  const end = performance.now() + SLICE;
  while (queue.size && performance.now() < end) finish(queue.keys().next().value);
  booked = queue.size > 0;
  if (booked) setTimeout(nextSlice);
}

function finish(key) {
  const work = queue.get(key);
  queue.delete(key);
  work();
}

function drawAll() {
  while (queue.size) finish(queue.keys().next().value);
}

// Whether a figure has panels must be known at once; they are drawn when there is time, before they are scrolled to.
function draw(figure, section) {
  const plot = PLOTS[figure.dataset.kind](section);
  figure.hidden = !plot.panels.length;
  figure.plot = plot;
  const holder = figure.querySelector(".panels");
  while (holder.children.length > plot.panels.length) {
    queue.delete(holder.lastChild);
    holder.lastChild.remove();
  }
  while (holder.children.length < plot.panels.length) holder.append(document.createElement("div"));
  plot.panels.forEach((panel, i) => {
    const element = holder.children[i];
    element.className = panel.tall ? "panel tall" : "panel";
    element.style.height = panel.lines ? `${heightOf(panel)}px` : "";
    soon(element, () => element.replaceChildren(chart(panel, element.clientWidth, element.clientHeight)));
  });
  figure.querySelector(".legend").replaceChildren(...plot.legend.map(legendEntry));
  figure.querySelector(".note").textContent = plot.note ?? "";
  showNumbers(figure);
}

// A matrix is as high as it has lines.
const heightOf = (panel) => 60 + Math.min(32, Math.max(16, 480 / panel.lines)) * panel.lines;

function legendEntry(look) {
  const entry = document.createElement("span");
  entry.append(swatch(look), look.name);
  return entry;
}

// ── the numbers behind a plot, for screen readers and for reading them off ─────────────────────────

function showNumbers(figure) {
  const details = figure.querySelector("details");
  if (!details.open) return;
  const lines = figure.plot.panels.flatMap((panel) => panel.cells ? cellLines(panel) : pointLines(panel));
  const header = ["what", "point"];
  const table = made("table", {}, made("caption", { className: "unseen" }, figure.querySelector("h3").textContent),
    made("thead", {}, made("tr", {}, ...header.map((text) => made("th", { scope: "col" }, text)))),
    made("tbody", {}, ...lines.slice(0, 500).map(([name, text]) =>
      made("tr", {}, made("th", { scope: "row" }, name), made("td", {}, text)))));
  const cut = lines.length > 500 ? [made("p", { className: "caption" }, `The first 500 of ${lines.length}; the CSV file has all.`)] : [];
  details.querySelector(".scroll").replaceChildren(table, ...cut);
}

const cellLines = (panel) => panel.cells.map((cell) => cell.text.split("\n"));

const pointLines = (panel) => panel.series.flatMap((series) => series.points.map((point) => {
  const [name, ...rest] = point.text.split("\n");
  return [name, [panel.title, ...rest].filter(Boolean).join(", ")];
}));

// ── the point near the pointer is described beside it ───────────────────────────────────────────────────────────────

const tip = document.getElementById("tip");

function tell(event) {
  const picture = event.target.closest?.("svg.chart");
  const near = picture?.targets && nearest(picture, event);
  tip.hidden = !near;
  if (!near) return;
  const [first, ...rest] = near.text.split("\n");
  tip.replaceChildren(made("b", {}, first), ...rest.flatMap((line) => [made("br"), line]));
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + box.height + 24 > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16}px`;
}

function nearest(picture, event) {
  const box = picture.getBoundingClientRect();
  const scale = picture.viewBox.baseVal.width / box.width;
  const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  let [found, least] = [null, 30 ** 2];
  for (const target of picture.targets) {
    const distance = (target.x - x) ** 2 + (target.y - y) ** 2;
    if (distance < least) [found, least] = [target, distance];
  }
  return found;
}

document.addEventListener("pointermove", tell);
document.addEventListener("pointerdown", tell);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

// ── exports: CSV and SVG files ───────────────────────────────────────────────────────────────────────────────

const fileName = (section, ...more) => [section.title, ...more].join("-").replace(/[^\p{L}\p{N}.-]+/gu, "-");

function download(text, name, type) {
  const link = made("a", { href: URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A figure as one picture: its title, its panels where they stand on the page, its legend. Always light, for paper.
function pictureOf(figure) {
  drawAll();
  const holder = figure.querySelector(".panels");
  const width = holder.clientWidth + 24;
  const title = label(figure.querySelector("h3").textContent, 12, 22, { fill: "var(--ink)", "font-size": 15, "font-weight": 600 });
  const panels = [...holder.children].map((element) => {
    const panel = element.firstElementChild.cloneNode(true);
    panel.setAttribute("x", element.offsetLeft - holder.offsetLeft + 12);
    panel.setAttribute("y", element.offsetTop - holder.offsetTop + 36);
    for (const name of ["role", "aria-label", "class"]) panel.removeAttribute(name);
    return panel;
  });
  const { entries, bottom } = legendPicture(figure.plot.legend, width, holder.clientHeight + 52);
  const picture = svg("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${bottom}`, width, height: bottom },
                      svg("rect", { width, height: bottom, fill: "var(--card)" }), title, ...panels, ...entries);
  return resolved(new XMLSerializer().serializeToString(picture));
}

function legendPicture(looks, width, top) {
  let [x, y] = [12, top];
  const entries = looks.flatMap((look) => {
    const sample = swatch(look);
    const room = Number(sample.getAttribute("width")) + widthOf(look.name) + 28;
    if (x + room > width && x > 12) [x, y] = [12, y + 20];
    sample.setAttribute("x", x);
    sample.setAttribute("y", y - 10);
    const text = label(look.name, x + Number(sample.getAttribute("width")) + 6, y);
    x += room;
    return [sample, text];
  });
  return { entries, bottom: y + (looks.length ? 14 : -6) };
}

// Other programs have no CSS variables: each becomes its colour on a light page.
function resolved(text) {
  const probe = made("i");
  probe.style.colorScheme = "light";
  document.body.append(probe);
  const colour = (_, name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const plain = text.replace(/var\((--[\w-]+)\)/g, colour);
  probe.remove();
  return plain;
}

function prepareExports(figure, section) {
  const name = () => fileName(section, figure.dataset.kind, chosen.head);
  const actions = {
    csv: () => download(figure.plot.csv(), `${name()}.csv`, "text/csv"),
    svg: () => download(pictureOf(figure), `${name()}.svg`, "image/svg+xml"),
  };
  for (const [kind, action] of Object.entries(actions)) figure.querySelector(`.${kind}`).addEventListener("click", action);
}
