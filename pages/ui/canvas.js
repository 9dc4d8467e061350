// What the canvases share; Python puts it in front of each of their scripts.

const LAST_COLOUR = 254; // 255 is free for what has no value

function unpack(data) {
  const bytes = data.slice(); // the view starts at an odd offset
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  return { header, body: bytes.subarray(4 + length) };
}

function isDark(element) {
  const colour = getComputedStyle(element).getPropertyValue("--st-background-color").trim();
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = colour || "#ffffff";
  const hex = probe.fillStyle;
  const channel = (i) => parseInt(hex.slice(i, i + 2), 16);
  return 0.299 * channel(1) + 0.587 * channel(3) + 0.114 * channel(5) < 128;
}

function lookUp(stops) {
  const table = new Uint32Array(256);
  for (let value = 0; value < 256; value += 1) {
    const at = Math.min(value / LAST_COLOUR, 1);
    let i = 0;
    while (i < stops.length - 2 && at > stops[i + 1][0]) i += 1;
    const share = (at - stops[i][0]) / (stops[i + 1][0] - stops[i][0]);
    const channel = (k) => {
      const [a, b] = [stops[i][1], stops[i + 1][1]].map((c) => parseInt(c.slice(k, k + 2), 16));
      return Math.round(a + (b - a) * share);
    };
    table[value] = (255 << 24) | (channel(5) << 16) | (channel(3) << 8) | channel(1);
  }
  return table;
}

function make(tag, name, parent) {
  const element = document.createElement(tag);
  element.className = name;
  parent.appendChild(element);
  return element;
}

function placeTip(tip, lines, x, y) {
  tip.replaceChildren();
  for (const words of lines) make("div", "", tip).textContent = words;
  tip.style.display = "block";
  tip.style.left = `${Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(y + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
}

// Redraws when the size changes or the theme, which changes colours without new data. Returns what
// ends it.
function watch(root, sized, redraw) {
  const resized = new ResizeObserver(redraw);
  resized.observe(sized);
  const themed = new MutationObserver(redraw);
  for (let node = root; node; node = node.parentElement ?? node.getRootNode().host) {
    themed.observe(node, { attributes: true, attributeFilter: ["style", "class"] });
    if (node === document.body) break;
  }
  return () => {
    resized.disconnect();
    themed.disconnect();
  };
}
