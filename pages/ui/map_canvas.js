// One map of any length on a canvas (after canvas.js). The pooled picture of the whole map is always
// here; the exact weights of a window come from Python when the window is small enough. Tokens only
// ever become pixels of text or textContent. State of one mounted map lives on its root element,
// which survives new data.

const LEFT = 120; // CSS pixels for the labels of queries
const BELOW = 96; // and of keys
const TOP = 6;
const RIGHT = 8;
const LEAST = 8; // tokens of the smallest window
const LABEL_PITCH = 15; // CSS pixels a label needs
const NEAR = 12; // CSS pixels
const ASK_AFTER_MS = 180; // a hand that goes on moving asks for nothing

function unpackMap(data) {
  const { header, body } = unpack(data);
  const values = new Float32Array(body.slice().buffer); // at a whole address
  const n = header.cells[0] * header.cells[1];
  return { header, pooled: values.subarray(0, n), part: values.subarray(n) };
}

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// A window of `size` tokens that begins at `start`, moved and cut so that it lies in the text.
function fitted(start, size, n) {
  const wide = clamp(Math.round(size), Math.min(LEAST, n), n);
  const first = clamp(Math.round(start), 0, n - wide);
  return [first, first + wide];
}

// The least of 1, 2, 5, 10, 20, ... that is no less.
function roundStep(least) {
  for (let power = 1; ; power *= 10) {
    for (const step of [power, 2 * power, 5 * power]) if (step >= least) return step;
  }
}

function significant(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  return value < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

function makeParts(root, words) {
  root.replaceChildren();
  const bar = make("div", "bar", root);
  const buttons = {};
  for (const [name, sign] of [["closer", "+"], ["wider", "−"], ["whole", "⤢"]]) {
    buttons[name] = make("button", name, bar);
    buttons[name].type = "button";
    buttons[name].textContent = sign;
    buttons[name].title = words[name];
    buttons[name].setAttribute("aria-label", words[name]);
  }
  const where = make("span", "where", bar);
  const legend = make("span", "legend", bar);
  const canvas = make("canvas", "map", root);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  const live = make("div", "live", root);
  live.setAttribute("aria-live", "polite");
  const tip = make("div", "tip", root);
  return { canvas, buttons, where, legend, live, tip, window: null, asked: null, timer: 0, drag: null };
}

export default function mapCanvas({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".map-root");
  if (!root || !data) return undefined;
  const { header, pooled, part } = unpackMap(data);
  const { queries, keys, cells, words } = header;
  const parts = root.headscope ?? (root.headscope = makeParts(root, words));
  const { canvas, buttons, where, legend, live, tip } = parts;
  canvas.setAttribute("aria-label", header.label);
  // An answer to an earlier question must not pull back a hand that has moved on.
  if (parts.asked?.join() === header.window.join()) parts.asked = null;
  if (!parts.asked || !parts.window) parts.window = header.window;
  const context = canvas.getContext("2d");
  let frame = 0;
  let plot = { width: 1, height: 1 };

  // What is drawn of a window: exact weights where all of it is here, else cells of the whole map.
  function picture() {
    const [q0, q1, k0, k1] = parts.window;
    const [p0, p1, r0, r1] = header.part ?? [0, 0, 0, 0];
    if (header.part && q0 >= p0 && q1 <= p1 && k0 >= r0 && k1 <= r1) {
      return {
        exact: true, rows: q1 - q0, columns: k1 - k0, rowStart: 0, columnStart: 0,
        rowStep: 1, columnStep: 1, values: part,
        at: (r, c) => (q0 - p0 + r) * (r1 - r0) + (k0 - r0 + c),
        range: (r, c) => [q0 + r, q0 + r + 1, k0 + c, k0 + c + 1],
      };
    }
    const edge = (i, n, count) => Math.floor((i * n) / count);
    const cellOf = (t, n, count) => Math.floor(((t + 1) * count - 1) / n);
    const [i0, i1] = [cellOf(q0, queries, cells[0]), cellOf(q1 - 1, queries, cells[0]) + 1];
    const [j0, j1] = [cellOf(k0, keys, cells[1]), cellOf(k1 - 1, keys, cells[1]) + 1];
    const rows = [edge(i0, queries, cells[0]), edge(i1, queries, cells[0])];
    const columns = [edge(j0, keys, cells[1]), edge(j1, keys, cells[1])];
    return {
      exact: cells[0] === queries && cells[1] === keys,
      rows: i1 - i0, columns: j1 - j0,
      // Cells at the border may begin before the window.
      rowStart: rows[0] - q0, columnStart: columns[0] - k0,
      rowStep: (rows[1] - rows[0]) / (i1 - i0), columnStep: (columns[1] - columns[0]) / (j1 - j0),
      values: pooled,
      at: (r, c) => (i0 + r) * cells[1] + j0 + c,
      range: (r, c) => [
        edge(i0 + r, queries, cells[0]), edge(i0 + r + 1, queries, cells[0]),
        edge(j0 + c, keys, cells[1]), edge(j0 + c + 1, keys, cells[1]),
      ],
    };
  }

  function paint(shown, dark) {
    const table = lookUp(dark ? header.dark : header.light);
    const { rows, columns, values, at } = shown;
    let peak = 0;
    const rowPeaks = new Float32Array(rows);
    for (let r = 0; r < rows; r += 1) {
      for (let c = 0; c < columns; c += 1) {
        const value = values[at(r, c)];
        if (value > rowPeaks[r]) rowPeaks[r] = value;
      }
      peak = Math.max(peak, rowPeaks[r]);
    }
    const sheet = document.createElement("canvas");
    sheet.width = columns;
    sheet.height = rows;
    const sheetContext = sheet.getContext("2d");
    const image = sheetContext.createImageData(columns, rows);
    const out = new Uint32Array(image.data.buffer);
    const blank = dark ? 0xff3b2d2a : 0xfff4eeec;
    for (let r = 0; r < rows; r += 1) {
      const top = header.scale === "row" ? rowPeaks[r] : peak;
      for (let c = 0; c < columns; c += 1) {
        const value = values[at(r, c)];
        let share = top > 0 ? value / top : 0;
        if (header.scale === "sqrt") share = Math.sqrt(share);
        out[r * columns + c] = Number.isNaN(value) ? blank : table[Math.round(LAST_COLOUR * share)];
      }
    }
    sheetContext.putImageData(image, 0, 0);
    return { sheet, peak };
  }

  function showBar(shown, peak, dark) {
    const [q0, q1, k0, k1] = parts.window;
    const cell = shown.exact ? words.exact : words.pooled;
    where.textContent = `${words.query} ${q0}–${q1 - 1} · ${words.key} ${k0}–${k1 - 1} · ${cell}`;
    const stops = (dark ? header.dark : header.light)
      .map(([p, c]) => `${c} ${100 * (header.scale === "sqrt" ? p * p : p)}%`);
    legend.replaceChildren();
    const add = (tag, text) => {
      const element = document.createElement(tag);
      element.textContent = text;
      legend.appendChild(element);
      return element;
    };
    add("span", words.legend);
    add("span", "0");
    add("i", "").style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    add("span", header.scale === "row" ? words.rowPeak : significant(peak));
    const isWhole = q0 === 0 && k0 === 0 && q1 === queries && k1 === keys;
    buttons.wider.disabled = isWhole;
    buttons.whole.disabled = isWhole;
    buttons.closer.disabled = q1 - q0 <= LEAST && k1 - k0 <= LEAST;
  }

  function labels(style, text) {
    const [q0, q1, k0, k1] = parts.window;
    context.fillStyle = text;
    context.font = `11px ${style.fontFamily}`;
    const name = (list, start, i) => list?.[i - start] ?? String(i);
    const ticks = (from, to, pixels) => {
      const pitch = pixels / (to - from);
      const step = roundStep(LABEL_PITCH / pitch);
      const found = [];
      for (let i = Math.ceil(from / step) * step; i < to; i += step) {
        found.push([i, (i - from + 0.5) * pitch]);
      }
      return found;
    };
    const near = header.part ?? [0, 0, 0, 0];
    const inside = (a, b, i) => i >= a && i < b;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const [i, y] of ticks(q0, q1, plot.height)) {
      const known = inside(near[0], near[1], i) ? header.queryLabels : null;
      context.fillText(cut(name(known, near[0], i), LEFT - 22), LEFT - 6, TOP + y);
    }
    for (const [i, x] of ticks(k0, k1, plot.width)) {
      const known = inside(near[2], near[3], i) ? header.keyLabels : null;
      context.save();
      context.translate(LEFT + x, TOP + plot.height + 6);
      context.rotate(-Math.PI / 4);
      context.fillText(cut(name(known, near[2], i), 96), 0, 0);
      context.restore();
    }
    context.font = `12px ${style.fontFamily}`;
    context.textAlign = "center";
    context.fillText(words.keyAxis, LEFT + plot.width / 2, TOP + plot.height + BELOW - 10);
    context.save();
    context.translate(9, TOP + plot.height / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(words.queryAxis, 0, 0);
    context.restore();
  }

  function cut(label, most) {
    if (context.measureText(label).width <= most) return label;
    const letters = [...label];
    while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > most) letters.pop();
    return `${letters.join("")}…`;
  }

  function draw() {
    frame = 0;
    const width = root.clientWidth;
    if (width <= 0) return;
    const side = Math.min(width - LEFT - RIGHT, header.height);
    const [q0, q1, k0, k1] = parts.window;
    plot = { width: side, height: side };
    const ratio = window.devicePixelRatio || 1;
    const high = TOP + side + BELOW;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${high}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(high * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const dark = isDark(root);
    const style = getComputedStyle(root);
    const text = style.getPropertyValue("--st-text-color");
    const shown = picture();
    const { sheet, peak } = paint(shown, dark);
    const [high1, wide1] = [plot.height / (q1 - q0), plot.width / (k1 - k0)];
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, plot.width, plot.height);
    context.clip();
    // Cells smaller than a pixel are averaged, larger ones keep their edges.
    context.imageSmoothingEnabled = shown.rowStep * high1 * ratio < 1;
    context.drawImage(sheet,
      LEFT + shown.columnStart * wide1, TOP + shown.rowStart * high1,
      shown.columns * shown.columnStep * wide1, shown.rows * shown.rowStep * high1);
    context.restore();
    context.strokeStyle = style.getPropertyValue("--st-border-color");
    context.lineWidth = 1;
    context.strokeRect(LEFT - 0.5, TOP - 0.5, plot.width + 1, plot.height + 1);
    if (header.chosen) {
      const [query, key] = header.chosen;
      context.strokeStyle = dark ? text : style.getPropertyValue("--st-primary-color");
      context.lineWidth = 2;
      const y = TOP + (query - q0) * high1;
      const x = LEFT + (key - k0) * wide1;
      if (shown.exact && query >= q0 && query < q1 && key >= k0 && key < k1) {
        context.strokeRect(x - 1, y - 1, wide1 + 2, high1 + 2);
      }
    }
    if (parts.drag?.to) {
      context.strokeStyle = text;
      context.lineWidth = 1;
      context.setLineDash([4, 3]);
      const { from: [x0, y0], to: [x1, y1] } = parts.drag;
      context.strokeRect(x0, y0, x1 - x0, y1 - y0);
      context.setLineDash([]);
    }
    labels(style, text);
    showBar(shown, peak, dark);
    // For tests and for people who look with a program: what is shown, as JSON.
    canvas.dataset.view = JSON.stringify({
      window: parts.window, exact: shown.exact, part: header.part, title: header.label,
      queryLabels: header.queryLabels, keyLabels: header.keyLabels,
    });
  }

  const redraw = () => {
    if (!frame) frame = requestAnimationFrame(draw);
  };

  function look(query, key) {
    const next = [...fitted(...query, queries), ...fitted(...key, keys)];
    if (next.join() === parts.window.join()) return;
    parts.window = next;
    parts.asked = next;
    clearTimeout(parts.timer);
    parts.timer = setTimeout(() => setTriggerValue("window", next), ASK_AFTER_MS);
    hideTip();
    redraw();
  }

  function zoom(factor, at) {
    const [q0, q1, k0, k1] = parts.window;
    const [high, wide] = [q1 - q0, k1 - k0];
    const [y, x] = at ?? [0.5, 0.5];
    const [high2, wide2] = [high * factor, wide * factor];
    look([q0 + y * (high - high2), high2], [k0 + x * (wide - wide2), wide2]);
  }

  function move(down, across) {
    const [q0, q1, k0, k1] = parts.window;
    look([q0 + (down * (q1 - q0)) / 4, q1 - q0], [k0 + (across * (k1 - k0)) / 4, k1 - k0]);
  }

  const whole = () => look([0, queries], [0, keys]);

  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const share = ([x, y]) => [(y - TOP) / plot.height, (x - LEFT) / plot.width];
  const isInside = ([y, x]) => y >= 0 && y < 1 && x >= 0 && x < 1;

  // The cell under a place, with the tokens it covers.
  function cellAt(place) {
    const [y, x] = share(place);
    if (!isInside([y, x])) return null;
    const [q0, q1, k0, k1] = parts.window;
    const shown = picture();
    const row = Math.floor((y * (q1 - q0) - shown.rowStart) / shown.rowStep);
    const column = Math.floor((x * (k1 - k0) - shown.columnStart) / shown.columnStep);
    const at = [clamp(row, 0, shown.rows - 1), clamp(column, 0, shown.columns - 1)];
    return { range: shown.range(...at), value: shown.values[shown.at(...at)], exact: shown.exact };
  }

  function tipLines({ range: [q0, q1, k0, k1], value, exact }) {
    const near = header.part ?? [0, 0, 0, 0];
    const span = (list, from, a, b) =>
      (b - a > 1 ? `${a}–${b - 1}` : list?.[a - from] ?? String(a));
    const isNear = exact && header.part;
    return [
      `${words.query} ${span(isNear && header.queryLabels, near[0], q0, q1)}`,
      `${words.key} ${span(isNear && header.keyLabels, near[2], k0, k1)}`,
      `${exact ? words.weight : words.mean} ${significant(value)}`,
    ];
  }

  function showTip(place, event) {
    const cell = cellAt(place);
    if (!cell) return hideTip();
    placeTip(tip, tipLines(cell), event.clientX, event.clientY);
    return undefined;
  }

  function hideTip() {
    tip.style.display = "none";
  }

  const held = ([x, y]) => [clamp(x, LEFT, LEFT + plot.width), clamp(y, TOP, TOP + plot.height)];

  canvas.onpointerdown = (event) => {
    const place = point(event);
    const from = held(place);
    // A corner of the map is hard to hit: a drag may begin a little outside.
    const isNear = Math.hypot(place[0] - from[0], place[1] - from[1]) <= NEAR;
    if (event.button !== 0 || !isNear) return;
    canvas.setPointerCapture(event.pointerId);
    parts.drag = { from, to: null };
  };
  canvas.onpointermove = (event) => {
    const place = point(event);
    if (!parts.drag) return showTip(place, event);
    const far = Math.hypot(place[0] - parts.drag.from[0], place[1] - parts.drag.from[1]) > 4;
    if (far || parts.drag.to) {
      parts.drag.to = held(place);
      hideTip();
      redraw();
    }
    return undefined;
  };
  canvas.onpointerup = (event) => {
    if (!parts.drag) return;
    const { from, to } = parts.drag;
    parts.drag = null;
    if (to) {
      const [[y0, x0], [y1, x1]] = [share(from), share(to)];
      const [q0, q1, k0, k1] = parts.window;
      const [high, wide] = [q1 - q0, k1 - k0];
      look([q0 + Math.min(y0, y1) * high, Math.abs(y1 - y0) * high],
        [k0 + Math.min(x0, x1) * wide, Math.abs(x1 - x0) * wide]);
      redraw();
    } else {
      const cell = cellAt(point(event));
      if (cell?.exact) setTriggerValue("cell", [cell.range[0], cell.range[2]]);
      else if (cell) zoom(0.25, share(from));
    }
  };
  canvas.onpointercancel = () => {
    parts.drag = null;
    redraw();
  };
  canvas.onpointerleave = hideTip;
  canvas.ondblclick = whole;
  // The wheel scrolls the page, as everywhere, unless the map is in hand.
  canvas.onwheel = (event) => {
    const place = share(point(event));
    const inHand = event.ctrlKey || root.getRootNode().activeElement === canvas;
    if (!inHand || !isInside(place)) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, place);
  };
  canvas.onkeydown = (event) => {
    const moves = {
      ArrowUp: () => move(-1, 0),
      ArrowDown: () => move(1, 0),
      ArrowLeft: () => move(0, -1),
      ArrowRight: () => move(0, 1),
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      Home: whole,
      Escape: whole,
    };
    if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
    live.textContent = `${words.query} ${parts.window[0]}–${parts.window[1] - 1}, `
      + `${words.key} ${parts.window[2]}–${parts.window[3] - 1}`;
  };
  buttons.closer.onclick = () => zoom(0.5);
  buttons.wider.onclick = () => zoom(2);
  buttons.whole.onclick = whole;
  canvas.plot = () => ({ x: LEFT, y: TOP, side: plot.width });
  // Exact weights that are here, by position; undefined elsewhere.
  canvas.weight = (query, key) => {
    const [p0, p1, r0, r1] = header.part ?? [0, 0, 0, 0];
    const isHere = query >= p0 && query < p1 && key >= r0 && key < r1;
    return isHere ? part[(query - p0) * (r1 - r0) + key - r0] : undefined;
  };

  const unwatch = watch(root, root, redraw);
  draw();
  return () => {
    unwatch();
    if (frame) cancelAnimationFrame(frame);
    hideTip();
  };
}
