// Showing a plot: soon what is in sight, the rest when it comes into sight or goes to a printer.

// ── work that can wait: done in slices, so that the page answers in between ──────────────────────────────────

const SLICE = 20; // milliseconds
const AFTER_PAINT = 40; // milliseconds, in which the browser shows what was done at once
const queue = new Map(); // what it is for → the work; the latest counts
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

// ── panels are drawn when they come into sight ───────────────────────────────────────────────────────────────

const waiting = new Map(); // panel → how to draw it
const sight = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawNow(entry.target)),
  { rootMargin: "300px" },
);

function drawSoon(element, how) {
  waiting.set(element, how);
  sight.unobserve(element); // observed anew, it is reported anew, even if it never left
  sight.observe(element);
}

function drawNow(element) {
  waiting.get(element)?.();
  waiting.delete(element);
}

function drawAll() {
  for (const key of [...queue.keys()]) finish(key);
  for (const element of [...waiting.keys()]) drawNow(element);
}

// Whether a figure has anything to show must be known at once; its panels are worked out when they are needed.
function draw(figure, section) {
  const plot = PLOTS[figure.dataset.kind](section);
  figure.hidden = !plot.panels.length;
  figure.plot = plot;
  const holder = figure.querySelector(".panels");
  while (holder.children.length > plot.panels.length) {
    waiting.delete(holder.lastChild);
    sight.unobserve(holder.lastChild);
    holder.lastChild.remove();
  }
  while (holder.children.length < plot.panels.length) holder.append(document.createElement("div"));
  plot.panels.forEach((panel, i) => {
    const element = holder.children[i];
    element.className = panel.tall ? "panel tall" : "panel";
    element.style.height = panel.lines ? `${heightOf(panel)}px` : "";
    drawSoon(element, () => element.replaceChildren(chart(panel, element.clientWidth, element.clientHeight)));
  });
  figure.querySelector(".legend").replaceChildren(...plot.legend.map(legendEntry));
  figure.querySelector(".note").textContent = plot.note ?? "";
  showNumbers(figure);
}

// A plot with one line per configuration is as high as it has lines.
const heightOf = (panel) => panel.cells ? 60 + Math.min(32, Math.max(16, 480 / panel.lines)) * panel.lines
                                        : 76 + Math.min(30, Math.max(20, 560 / panel.lines)) * panel.lines;

function legendEntry(look) {
  const entry = document.createElement("span");
  entry.append(swatch(look), look.name);
  return entry;
}

// ── the numbers behind a plot, for those who cannot see it, or want to read them off ─────────────────────────

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

// ── what the pointer is near is told beside it ───────────────────────────────────────────────────────────────

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
