// Everything was computed beforehand: sliders look up numbers, and nothing is loaded.
const data = JSON.parse(document.getElementById("data").textContent);
const sides = ["workers", "bandwidth", "batch"];
const sliders = Object.fromEntries(sides.map((name) => [name, document.getElementById(name)]));
const bars = document.getElementById("bars");

function rates() {
  const [w, b, s] = sides.map((name) => Number(sliders[name].value));
  return data.strategies.map((name, k) => [name, data.rates[k][w][b][s], k]).sort((one, two) => two[1] - one[1]);
}

function draw() {
  for (const name of sides) {
    document.getElementById(name + "-value").textContent = data.labels[name][Number(sliders[name].value)];
  }
  const found = rates();
  bars.replaceChildren(...found.map(([name, rate, k]) => {
    const row = document.createElement("div");
    const label = document.createElement("span");
    const hold = document.createElement("span");
    const bar = document.createElement("i");
    const value = document.createElement("span");
    label.textContent = name.replaceAll("_", "_\u200b"); // long names may break behind an underscore
    bar.style.width = 100 * rate / found[0][1] + "%";
    bar.style.background = "var(--series" + (k + 1) + ")";
    value.textContent = Math.round(rate).toLocaleString("en") + " " + data.unit + "/s";
    hold.append(bar);
    row.append(label, hold, value);
    return row;
  }));
}

for (const name of sides) {
  sliders[name].addEventListener("input", draw);
}
draw();
