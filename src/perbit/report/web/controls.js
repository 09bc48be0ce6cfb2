// What works the page: buttons that choose, chips that hide methods, headings that sort, buttons that copy.
// Every choice is kept in `state`, and whoever draws listens to `changed`.

const state = { way: "up", frontierX: "log", frontierY: "log", trainingX: "bytes", trainingY: "accuracy", layersX: "log",
  clientsY: "log", link: null, speed: null, target: null, fitsOf: 0, fitsY: "beta" };
const hidden = new Set();
let changed = () => {};

function choose(key, value) {
  state[key] = value;
  for (const button of document.querySelectorAll(`[data-set="${key}"]`)) {
    button.setAttribute("aria-pressed", String(button.dataset.to === String(value)));
  }
  changed(key);
}

function showMethods() {
  for (const chip of document.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.method)));
  for (const row of document.querySelectorAll("tr[data-method]")) row.classList.toggle("faded", hidden.has(row.dataset.method));
  changed("methods");
}

function onlyOrAll(name) {
  const others = [...document.querySelectorAll(".chip")].map((chip) => chip.dataset.method).filter((other) => other !== name);
  const alone = others.every((other) => hidden.has(other)) && !hidden.has(name);
  hidden.clear();
  if (!alone) others.forEach((other) => hidden.add(other));
  showMethods();
}

function sortBy(heading) {
  const table = heading.closest("table");
  const column = [...heading.parentNode.children].indexOf(heading);
  const descends = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descends ? "descending" : "ascending");
  const key = (row) => row.children[column].dataset.value;
  const number = (text) => (text === "-inf" ? -Infinity : Number(text));
  const compare = column === 0 ? (a, b) => key(a).localeCompare(key(b)) : (a, b) => number(key(a)) - number(key(b));
  const rows = [...table.tBodies[0].rows].sort((a, b) => (descends ? -compare(a, b) : compare(a, b)));
  table.tBodies[0].append(...rows);
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: button.dataset.copy });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = "copy"; }, 1200);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.set) choose(button.dataset.set, button.dataset.to);
  else if (button.matches(".chip")) {
    if (event.detail > 1) return;  // the second of two clicks
    const name = button.dataset.method;
    if (!hidden.delete(name)) hidden.add(name);
    showMethods();
  } else if (button.closest("th")) sortBy(button.closest("th"));
  else if (button.dataset.copy) copy(button);
});
document.addEventListener("dblclick", (event) => {
  const chip = event.target.closest(".chip");
  if (chip) { hidden.delete(chip.dataset.method); onlyOrAll(chip.dataset.method); }
});
