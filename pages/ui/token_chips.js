// The sentence as chips. Tokens are data: they only ever become textContent.

function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

function shade(stops, at) {
  let i = 0;
  while (i < stops.length - 2 && at > stops[i + 1][0]) i += 1;
  const share = Math.min(1, Math.max(0, (at - stops[i][0]) / (stops[i + 1][0] - stops[i][0])));
  const [a, b] = [channels(stops[i][1]), channels(stops[i + 1][1])];
  return a.map((value, k) => Math.round(value + (b[k] - value) * share));
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((v) => (v / 255 <= 0.03928 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function paint(chip, stops, strength) {
  const rgb = shade(stops, strength);
  chip.style.background = `rgb(${rgb.join(",")})`;
  chip.style.color = luminance(rgb) > 0.2 ? "#15161f" : "#ffffff";
}

export default function tokenChips({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".chips-root");
  if (!root || !data) return undefined;
  const focused = root.getRootNode().activeElement?.dataset?.place;
  root.replaceChildren();
  for (const line of data.lines) {
    const row = document.createElement("div");
    row.className = line.name ? "line" : "line bare";
    if (line.name) {
      const name = document.createElement("div");
      name.className = "name";
      name.textContent = line.name;
      row.appendChild(name);
    }
    const chips = document.createElement("div");
    chips.className = line.tokens.length > 120 ? "chips long" : "chips";
    chips.setAttribute("role", "group");
    chips.setAttribute("aria-label", line.label);
    for (const token of line.tokens) {
      const chip = document.createElement("button");
      chip.type = "button";
      chip.title = token.title;
      chip.dataset.place = `${line.axis}.${token.index}`;
      if (token.special) chip.classList.add("special");
      if (token.index === line.chosen) {
        chip.classList.add("chosen");
        chip.setAttribute("aria-pressed", "true");
      }
      const word = document.createElement("span");
      word.className = "word";
      word.textContent = token.text;
      chip.appendChild(word);
      if (token.figure !== null) {
        const figure = document.createElement("span");
        figure.className = "figure";
        figure.textContent = token.figure;
        chip.appendChild(figure);
      }
      if (token.strength !== null) paint(chip, data.stops, token.strength);
      if (data.clickable) {
        chip.onclick = () => setTriggerValue("token", [line.axis, token.index]);
        chip.onkeydown = (event) => {
          const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" };
          const next = step[event.key] && chip[step[event.key]];
          if (next) {
            event.preventDefault();
            next.focus();
          }
        };
      } else {
        chip.disabled = true;
      }
      chips.appendChild(chip);
    }
    row.appendChild(chips);
    root.appendChild(row);
  }
  // New data replaces the chips; whoever works with the keyboard must not lose their place.
  if (focused) {
    for (const chip of root.querySelectorAll("button")) {
      if (chip.dataset.place === focused) chip.focus();
    }
  }
  return undefined;
}
