// Draws all heads into one canvas and reports the chosen one (after canvas.js). Data only ever
// becomes pixels or textContent. State of one mounted grid lives on its root element, which
// survives new data.

const INDEX_SPACE = 22; // CSS pixels for the layer numbers on the left and head numbers on top
const MAX_HEIGHT = 560;
const MAX_HEIGHT_DEEP = 700; // for models with more layers than heads
const WIDEST = 1.7; // a cell may be this much wider than high
const MIN_CELL = 9;

function paintPixels(header, pixels, table) {
  const { layers, heads, rows, columns } = header;
  const sheet = document.createElement("canvas");
  sheet.width = heads * columns;
  sheet.height = layers * rows;
  const context = sheet.getContext("2d");
  const image = context.createImageData(sheet.width, sheet.height);
  const out = new Uint32Array(image.data.buffer);
  let from = 0;
  for (let layer = 0; layer < layers; layer += 1) {
    for (let head = 0; head < heads; head += 1) {
      for (let row = 0; row < rows; row += 1) {
        const start = (layer * rows + row) * sheet.width + head * columns;
        for (let column = 0; column < columns; column += 1, from += 1) {
          out[start + column] = table[pixels[from]];
        }
      }
    }
  }
  context.putImageData(image, 0, 0);
  return sheet;
}

function makeParts(root) {
  root.replaceChildren();
  const scroll = make("div", "grid-scroll", root);
  const canvas = make("canvas", "grid", scroll);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  const legend = make("div", "legend", root);
  const live = make("div", "live", root);
  live.setAttribute("aria-live", "polite");
  const tip = make("div", "tip", root);
  return { scroll, canvas, legend, live, tip, cursor: null };
}

function showLegend(legend, header, dark) {
  legend.replaceChildren();
  if (!header.legend) return;
  const [low, high] = header.legend;
  const text = (value) => {
    const span = document.createElement("span");
    span.textContent = value;
    legend.appendChild(span);
  };
  text(low);
  const bar = document.createElement("span");
  bar.className = "bar";
  const stops = (dark ? header.dark : header.light).map(([p, c]) => `${c} ${100 * p}%`);
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  legend.appendChild(bar);
  text(high);
}

export default function headGrid({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".grid-root");
  if (!root || !data) return undefined;
  const parts = root.headscope ?? (root.headscope = makeParts(root));
  const { canvas, scroll, tip, live, legend } = parts;
  const { header, body: pixels } = unpack(data);
  const { layers, heads, rows, columns } = header;
  const chosen = [header.chosenLayers[0] ?? 0, header.chosenHeads[0] ?? 0];
  const place = chosen.join();
  if (parts.chosen !== place || !parts.cursor) {
    parts.chosen = place;
    parts.cursor = chosen;
  }
  parts.cursor = [Math.min(parts.cursor[0], layers - 1), Math.min(parts.cursor[1], heads - 1)];
  canvas.setAttribute("aria-label", header.label);
  let cell = 20; // height and, for the width, wideCell
  let wideCell = 20;
  let frame = 0;
  let hovered = null;
  let sheet = null;
  let sheetDark = null;

  const tipOf = ([layer, head]) => header.tips[layer * heads + head];

  function draw() {
    frame = 0;
    const dark = isDark(root);
    if (sheet === null || dark !== sheetDark) {
      sheet = paintPixels(header, pixels, lookUp(dark ? header.dark : header.light));
      sheetDark = dark;
      showLegend(legend, header, dark);
    }
    const width = scroll.clientWidth - 4;
    if (width <= 0) return;
    const tallest = (layers > 16 ? MAX_HEIGHT_DEEP : MAX_HEIGHT) - INDEX_SPACE;
    const across = (width - INDEX_SPACE - 2) / heads;
    cell = Math.max(Math.floor(Math.min(across, tallest / layers)), MIN_CELL);
    wideCell = Math.max(Math.floor(Math.min(across, WIDEST * cell)), MIN_CELL);
    const wide = INDEX_SPACE + wideCell * heads + 2;
    const high = INDEX_SPACE + cell * layers + 2;
    const ratio = window.devicePixelRatio || 1;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(root);
    const text = style.getPropertyValue("--st-text-color");
    const accent = style.getPropertyValue("--st-primary-color");
    const line = style.getPropertyValue("--st-border-color");
    const inner = cell - (cell > 14 ? 2 : 1);
    const innerWide = wideCell - (cell > 14 ? 2 : 1);
    context.imageSmoothingEnabled = Math.max(rows, columns) > inner * ratio;
    context.imageSmoothingQuality = "high";
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    const every = cell >= 17 ? 1 : cell >= 11 ? 2 : 4;
    for (let layer = 0; layer < layers; layer += 1) {
      const y = INDEX_SPACE + layer * cell;
      context.fillStyle = text;
      context.globalAlpha = header.chosenLayers.includes(layer) ? 1 : 0.62;
      if (layer % every === 0) context.fillText(layer, INDEX_SPACE / 2 - 1, y + inner / 2);
      context.globalAlpha = 1;
      for (let head = 0; head < heads; head += 1) {
        const x = INDEX_SPACE + head * wideCell;
        const value = pixels[(layer * heads + head) * rows * columns];
        if (header.undefined !== null && value === header.undefined) {
          context.strokeStyle = line;
          context.lineWidth = 1;
          context.strokeRect(x + 0.5, y + 0.5, innerWide - 1, inner - 1);
          context.beginPath();
          context.moveTo(x, y + inner);
          context.lineTo(x + innerWide, y);
          context.stroke();
        } else {
          const from = [head * columns, layer * rows, columns, rows];
          context.drawImage(sheet, ...from, x, y, innerWide, inner);
          context.strokeStyle = line;
          context.lineWidth = 0.75;
          context.strokeRect(x + 0.375, y + 0.375, innerWide - 0.75, inner - 0.75);
        }
      }
    }
    context.fillStyle = text;
    for (let head = 0; head < heads; head += every) {
      context.globalAlpha = header.chosenHeads.includes(head) ? 1 : 0.62;
      context.fillText(head, INDEX_SPACE + head * wideCell + innerWide / 2, INDEX_SPACE / 2);
    }
    context.globalAlpha = 1;
    // Two strokes, so that the outline shows on cells of any colour.
    const ground = style.getPropertyValue("--st-background-color");
    for (const [colour, thick] of [[ground, 5], [dark ? text : accent, 2]]) {
      context.lineWidth = thick;
      context.strokeStyle = colour;
      for (const layer of header.chosenLayers) {
        for (const head of header.chosenHeads) {
          context.strokeRect(INDEX_SPACE + head * wideCell - 1, INDEX_SPACE + layer * cell - 1,
            innerWide + 2, inner + 2);
        }
      }
    }
    context.lineWidth = 2;
    const [layer, head] = parts.cursor;
    const focused = root.getRootNode().activeElement === canvas;
    if (focused && place !== parts.cursor.join()) {
      context.setLineDash([3, 2]);
      context.strokeStyle = text;
      context.strokeRect(INDEX_SPACE + head * wideCell - 1, INDEX_SPACE + layer * cell - 1,
        innerWide + 2, inner + 2);
      context.setLineDash([]);
    }
  }

  const redraw = () => {
    if (!frame) frame = requestAnimationFrame(draw);
  };

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const head = Math.floor((event.clientX - box.left - INDEX_SPACE) / wideCell);
    const layer = Math.floor((event.clientY - box.top - INDEX_SPACE) / cell);
    return layer >= 0 && layer < layers && head >= 0 && head < heads ? [layer, head] : null;
  }

  const showTip = (where, x, y) => placeTip(tip, tipOf(where), x, y);

  const hideTip = () => {
    tip.style.display = "none";
    hovered = null;
  };

  function choose(where) {
    parts.cursor = where;
    hideTip();
    setTriggerValue("head", where);
    redraw();
  }

  canvas.onmousemove = (event) => {
    const where = at(event);
    if (!where) return hideTip();
    hovered = where;
    showTip(where, event.clientX, event.clientY);
    return undefined;
  };
  canvas.onmouseleave = hideTip;
  canvas.onclick = (event) => {
    const where = at(event);
    if (where) choose(where);
  };
  canvas.onfocus = redraw;
  canvas.onblur = () => {
    hideTip();
    redraw();
  };
  canvas.onkeydown = (event) => {
    const [layer, head] = parts.cursor;
    const moves = {
      ArrowUp: [layer - 1, head],
      ArrowDown: [layer + 1, head],
      ArrowLeft: [layer, head - 1],
      ArrowRight: [layer, head + 1],
      Home: [layer, 0],
      End: [layer, heads - 1],
      PageUp: [0, head],
      PageDown: [layers - 1, head],
    };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(parts.cursor);
    } else if (event.key === "Escape") {
      hideTip();
    } else if (moves[event.key]) {
      event.preventDefault();
      event.stopPropagation();
      const [to, across] = moves[event.key];
      parts.cursor = [
        Math.max(0, Math.min(layers - 1, to)),
        Math.max(0, Math.min(heads - 1, across)),
      ];
      live.textContent = tipOf(parts.cursor).join(", ");
      const box = canvas.getBoundingClientRect();
      const x = box.left + INDEX_SPACE + (parts.cursor[1] + 1) * wideCell - 8;
      const y = box.top + INDEX_SPACE + (parts.cursor[0] + 1) * cell - 8;
      showTip(parts.cursor, x, y);
      redraw();
    }
  };

  // Esc anywhere brings a zoomed chart back, unless a field or a menu has the key for itself.
  const reset = (event) => {
    if (event.key !== "Escape" || event.target.closest?.("input, textarea, [role=listbox]")) return;
    document.querySelectorAll('.js-plotly-plot .modebar-btn[data-attr="zoom"][data-val="reset"]')
      .forEach((button) => button.dispatchEvent(new MouseEvent("click", { bubbles: true })));
  };
  document.addEventListener("keydown", reset);
  const unwatch = watch(root, scroll, redraw);
  draw();
  return () => {
    document.removeEventListener("keydown", reset);
    unwatch();
    if (frame) cancelAnimationFrame(frame);
    hideTip();
  };
}
