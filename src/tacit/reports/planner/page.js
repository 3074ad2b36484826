const FIELDS = [
  { key: "records", name: "records n", hint: "people in the data; taken as public", low: 100, high: 1e8, value: 60000, whole: true },
  { key: "lot", name: "lot size L", hint: "expected records in a step", low: 1, high: 1e6, value: 600, whole: true },
  { key: "epochs", name: "epochs", hint: "passes over the data", low: 0.1, high: 1000, value: 40 },
  { key: "noise", name: "noise multiplier σ", hint: "noise / clip norm", low: 0.2, high: 50, value: 1 },
  { key: "epsilon", name: "ε", hint: "the privacy budget", low: 0.01, high: 50, value: 2 },
  { key: "delta", name: "δ", hint: "well below 1/n", low: 1e-12, high: 1e-2, value: 1e-5 },
];
const DEPLOYMENTS = [
  ["Apple, health types (2017)", 2, "one person's day, local"],
  ["Apple, emoji (2017)", 4, "one person's day, local"],
  ["Apple, Safari domains (2017)", 8, "one person's day, local"],
  ["Apple, new words (2017)", 16, "one person's day, local"],
  ["Google Gboard, next word, best of 30 (2024)", 0.994, "a device (δ = 1e-10)"],
  ["Google Gboard, next word, Spanish (2022)", 8.9, "a device (δ = 1e-10)"],
  ["Google Gboard, next word, worst of 30 (2024)", 13.69, "a device (δ = 1e-10)"],
  ["US Census 2020, redistricting, persons", 17.14, "a person (δ = 1e-10)"],
];
const element = (id) => document.getElementById(id);
const state = { free: "noise", id: 0, plan: Object.fromEntries(FIELDS.map((field) => [field.key, field.value])) };

const plain = (value) => (value >= 1e6 || Number.isInteger(value) ? String(Math.round(value)) : String(+value.toPrecision(6)));
const show = (value) => (value < 1e-3 ? value.toExponential(2).replace(/\.?0+e/, "e") : plain(+value.toPrecision(4)));
// A command must plan what the page shows: twelve digits, where `show` keeps three or four.
const exact = (value) => (value < 1e-3 ? value.toExponential(11).replace(/\.?0+e/, "e") : String(+value.toPrecision(12)));
// Never below the bound: ε, δ and σ are rounded up.
const deltaUp = (value) => {
  const unit = 10 ** (Math.floor(Math.log10(value)) - 2);
  return show(Math.ceil(value / unit - 1e-9) * unit);
};
const roundedUp = (value, digits = 2) => (Math.ceil(value * 10 ** digits - 1e-9) / 10 ** digits).toFixed(digits);
const eight = (value, sign) => (value + sign * 5e-8 * value).toPrecision(8);

function build() {
  const form = element("settings");
  for (const field of FIELDS) {
    const box = document.createElement("fieldset");
    box.id = `box-${field.key}`;
    const solve = field.key === "records" ? "" : `<label class="solve"><input type="radio" name="free" value="${field.key}"> solve for this</label>`;
    box.innerHTML = `<legend>${field.name}</legend>${solve}<input type="text" inputmode="decimal" id="text-${field.key}" aria-label="${field.name}">` +
      `<input type="range" min="0" max="1000" id="slide-${field.key}" aria-label="${field.name}, slider"><small>${field.hint}</small>`;
    form.append(box);
    element(`slide-${field.key}`).addEventListener("input", (event) => {
      const value = field.low * (field.high / field.low) ** (event.target.value / 1000);
      state.plan[field.key] = field.whole ? Math.round(value) : +value.toPrecision(3);
      refresh(field.key);
    });
    element(`text-${field.key}`).addEventListener("change", (event) => {
      const value = Number(event.target.value), sound = value > 0 && Number.isFinite(value) && (field.key !== "delta" || value < 1);
      event.target.setAttribute("aria-invalid", String(!sound));
      if (sound) { state.plan[field.key] = field.whole ? Math.round(value) : value; refresh(field.key); }
    });
  }
  form.addEventListener("change", (event) => { if (event.target.name === "free") { state.free = event.target.value; refresh(); } });
  for (const button of document.querySelectorAll("[data-copy]"))
    button.addEventListener("click", () => {
      const range = document.createRange();
      range.selectNodeContents(element(button.dataset.copy));
      getSelection().removeAllRanges(); getSelection().addRange(range);
      navigator.clipboard?.writeText(element(button.dataset.copy).textContent).then(() => { button.textContent = "Copied"; }, () => {});
    });
}

function place(field, typing) {
  const value = state.plan[field.key];
  if (typing !== `text-${field.key}`) element(`text-${field.key}`).value = show(value);
  element(`slide-${field.key}`).value = String((1000 * Math.log(value / field.low)) / Math.log(field.high / field.low));
}

let waiting = 0;
function refresh(changed) {
  if (state.plan.lot > state.plan.records) state.plan[changed === "lot" ? "records" : "lot"] = state.plan[changed === "lot" ? "lot" : "records"];
  for (const field of FIELDS) {
    place(field);
    const free = field.key === state.free;
    element(`box-${field.key}`).classList.toggle("free", free);
    element(`slide-${field.key}`).disabled = element(`text-${field.key}`).disabled = free;
    const radio = document.querySelector(`input[value="${field.key}"]`);
    if (radio) radio.checked = free;
  }
  state.id += 1;
  clearTimeout(waiting);
  waiting = setTimeout(ask, 120);
}

class Superseded extends Error {}

async function ask() {
  const id = ++state.id;
  document.body.dataset.ready = "";
  element("claim").textContent = "Computing …";
  // A query whose settings have changed is of no use any more.
  const breathe = () => new Promise((go, stop) => setTimeout(() => (id === state.id ? go() : stop(new Superseded())), 0));
  try {
    await explain({ ...state.plan }, state.free, answer, breathe);
  } catch (error) {
    if (!(error instanceof Superseded)) answer({ error: error.message });
  }
}

function answer({ solved, steps, interval, curve, growth, error }) {
  if (error) {
    element("claim").textContent = error;
    element("claim").classList.add("refused");
    for (const id of ["interval", "attacker", "command", "python", "growth", "attack", "advice"]) element(id).textContent = "";
    document.body.dataset.ready = "error";
  }
  if (solved) {
    element("claim").classList.remove("refused");
    state.plan = solved; state.steps = steps; state.interval = interval;
    FIELDS.forEach((field) => place(field));
    element("claim").textContent = `(ε ≤ ${roundedUp(interval.upper)}, δ = ${deltaUp(solved.delta)}) example-level, add/remove, Poisson: ` +
      `σ = ${roundedUp(solved.noise, 4)}, ${steps} steps of ${solved.lot} of ${solved.records} records.`;
    element("interval").textContent = state.free === "delta" ? "δ is a certified upper bound."
      : interval.lower === null ? "Only the Rényi bound is in reach of this page here; the command below gives the tight interval."
      : `Certified: the least ε for this δ lies between ${eight(interval.lower, -1)} and ${eight(interval.upper, 1)}.`;
    advise(solved, interval);
    copies(solved, steps);
    deployments(interval.upper);
  }
  if (curve) {
    const rates = Array.from({ length: 61 }, (_, i) => i / 60), powers = attackBounds(curve, rates), [one] = attackBounds(curve, [0.01]);
    element("attacker").textContent = `An attacker who may accuse 1 of 100 innocent people finds at most ${roundedUp(100 * one, 1)} of 100 members; ` +
      `a suspicion of 50 % that a person is in the data can grow to at most ${roundedUp(100 / (1 + Math.exp(-state.interval.upper)), 1)} %, up to δ.`;
    draw("attack", [{ points: rates.map((rate, i) => [rate, powers[i]]) }, { points: [[0, 0], [1, 1]], guess: true }], [0, 1], [0, 1], "accused by mistake", "found");
  }
  if (growth) {
    draw("growth", [{ points: [[0, 0], ...growth] }], [0, growth[growth.length - 1][0]], [0, Math.max(...growth.map((point) => point[1])) || 1], "epochs", "ε");
    document.body.dataset.ready = "yes";
  }
}

function advise(plan, interval) {
  const said = [];
  if (plan.delta >= 1 / plan.records) said.push(`δ = ${show(plan.delta)} is not below 1/n = ${show(1 / plan.records)}: choose a smaller one, 1e-5 or 1/n² for example.`);
  if (interval.upper > 10) said.push(`ε = ${roundedUp(interval.upper)} promises little: add noise, or train for fewer epochs.`);
  if (plan.noise < 0.5) said.push(`σ = ${show(plan.noise)} is little noise; larger lots with more noise usually give a better model at the same ε.`);
  element("advice").replaceChildren(...said.map((text) => { const note = document.createElement("p"); note.className = "note"; note.textContent = text; return note; }));
}

function copies(plan, steps) {
  const delta = state.free === "delta" ? deltaUp(plan.delta) : exact(plan.delta);
  const given = { "--records": plan.records, "--lot-size": plan.lot, "--steps": steps, "--noise-multiplier": exact(plan.noise), "--epsilon": exact(plan.epsilon), "--delta": delta };
  const name = { lot: "--lot-size", epochs: "--steps", noise: "--noise-multiplier", epsilon: "--epsilon", delta: "--delta" }[state.free];
  element("command").textContent = "tacit plan " + Object.entries(given).filter(([key]) => key !== name).map(([key, value]) => `${key} ${value}`).join(" ");
  const budget = state.free === "epsilon" ? `noise_multiplier=${exact(plan.noise)}` : `budget=tacit.Budget(epsilon=${exact(plan.epsilon)}, delta=${delta})`;
  element("python").textContent = `run = tacit.make_private(\n    model, optimizer, dataset,\n    lot_size=${plan.lot}, steps=${steps}, clipping=1.0,\n    ${budget},\n)`;
}

function deployments(epsilon) {
  const rows = [...DEPLOYMENTS, ["This plan", epsilon, "one record"]].sort((a, b) => a[1] - b[1]);
  element("deployments").replaceChildren(...rows.map((row) => {
    const line = document.createElement("tr");
    if (row[0] === "This plan") line.className = "here";
    for (const cell of [row[0], row[0] === "This plan" ? roundedUp(row[1]) : String(row[1]), row[2]]) { const td = document.createElement("td"); td.textContent = cell; line.append(td); }
    return line;
  }));
}

function draw(id, lines, [left, right], [bottom, top], across, up) {
  const x = (value) => 52 + (370 * (value - left)) / (right - left || 1), y = (value) => 214 - (190 * (value - bottom)) / (top - bottom || 1);
  let inner = "";
  for (let i = 0; i <= 4; i++) {
    const a = left + ((right - left) * i) / 4, b = bottom + ((top - bottom) * i) / 4;
    inner += `<line class="grid" x1="52" x2="422" y1="${y(b)}" y2="${y(b)}"/><text x="46" y="${y(b) + 4}" text-anchor="end">${show(b) === "0e+0" ? 0 : show(b)}</text>`;
    inner += `<text x="${x(a)}" y="232" text-anchor="middle">${a === 0 ? 0 : show(a)}</text>`;
  }
  inner += `<text class="label" x="237" y="252" text-anchor="middle">${across}</text><text class="label" x="52" y="14">${up}</text>`;
  lines.forEach((line) => {
    const path = line.points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(Math.min(b, top)).toFixed(1)}`).join("");
    inner += `<path class="line ${line.guess ? "s5" : "s0"}" d="${path}"/>`;
  });
  element(id).innerHTML = inner;
}

build();
refresh();
