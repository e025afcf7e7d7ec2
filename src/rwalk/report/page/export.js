// Taking things away: CSV and SVG files, and a page of one figure for the printer, which also writes PDF.

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

// Other programs know no CSS variables: each becomes the colour that it has on a light page.
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
    pdf: () => printOnly(figure),
  };
  for (const [kind, action] of Object.entries(actions)) figure.querySelector(`.${kind}`).addEventListener("click", action);
}

// The printer's dialogue can save as PDF: the figure alone, as vectors.
function printOnly(figure) {
  figure.classList.add("only");
  document.documentElement.classList.add("one-figure");
  print();
  figure.classList.remove("only");
  document.documentElement.classList.remove("one-figure");
}
