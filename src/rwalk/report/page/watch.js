// A page that is served while a study runs: it asks for news every two seconds and, if there are any, loads itself again.
// The reader's choices are kept in between, and nothing moves while they are busy or have paused it.

const ASK_EVERY = 2000; // milliseconds
const PATIENCE = 4000; // after a key, a click or a turn of the wheel
const STORE = `rwalk ${location.pathname}`;
const pause = document.getElementById("pause");
const state = document.getElementById("live");
let busyUntil = 0;
let newer = false;

// ── the reader's choices, from one loading to the next ────────────────────────────────────────────────────────────

const kept = ["memory", "variants", "sort", "rows", "over", "after", "matrix", "seeds", "pair"];

function remember() {
  const sections = report.sections.map((section) => [
    `${section.title} ${section.facts}`, { ...Object.fromEntries(kept.map((name) => [name, section.chosen[name]])), panels: [...section.chosen.panels] }]);
  const hidden = report.methods.map((method) => method.id).filter((id) => !chosen.methods.has(id));
  sessionStorage.setItem(STORE, JSON.stringify({ head: chosen.head, hidden, sections, theme: root.dataset.theme, scroll: scrollY,
                                                 paused: pause.getAttribute("aria-pressed") }));
}

function recall() {
  let before = null;
  try { before = JSON.parse(sessionStorage.getItem(STORE)); } catch { /* nothing was kept */ }
  if (before) {
    chosen.head = before.head;
    for (const id of before.hidden) chosen.methods.delete(id);
    for (const input of document.querySelectorAll("#heads input")) input.checked = input.value === before.head;
    if (before.theme) root.dataset.theme = before.theme;
    pause.setAttribute("aria-pressed", before.paused);
  }
  start();
  const sections = new Map(before?.sections ?? []);
  for (const { element, section } of sectionsOnPage) {
    const own = sections.get(`${section.title} ${section.facts}`);
    if (own) restore(element, section, own);
  }
  drawAll();
  if (before) scrollTo(0, before.scroll);
}

function restore(element, section, own) {
  Object.assign(section.chosen, own, { panels: new Set(own.panels), after: Math.min(own.after, section.tasks - 1) });
  const show = (selector, value) => { element.querySelector(selector).value = value; };
  show(".memory select", own.memory);
  show(".variants select", own.variants);
  show(".over select", own.over);
  show(".measure select", own.seeds);
  show(".after input", section.chosen.after + 1);
  element.querySelector(".after output").textContent = afterWords(section);
  [...element.querySelectorAll(".chips button")].forEach((chip, j) => chip.setAttribute("aria-pressed", section.chosen.panels.has(j)));
  refreshSection(element, section);
}

// ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────

async function ask() {
  try {
    const answer = await (await fetch("state.json", { cache: "no-store" })).json();
    if (state.textContent !== answer.status) state.textContent = answer.status;
    newer ||= answer.version !== report.live.version;
  } catch {
    state.textContent = "The server has gone: this page shows what it last knew.";
  }
  if (newer && performance.now() > busyUntil && pause.getAttribute("aria-pressed") !== "true") {
    remember();
    location.reload();
  } else {
    setTimeout(ask, ASK_EVERY);
  }
}

for (const kind of ["pointerdown", "keydown", "wheel"]) {
  addEventListener(kind, () => { busyUntil = performance.now() + PATIENCE; }, { passive: true });
}
pause.addEventListener("click", () => pause.setAttribute("aria-pressed", pause.getAttribute("aria-pressed") !== "true"));
addEventListener("pagehide", remember);
recall();
setTimeout(ask, ASK_EVERY);
