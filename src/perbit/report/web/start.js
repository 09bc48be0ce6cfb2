// Unpack the charting script, draw, and draw again when a choice, the theme or the width changes.

const CONCERNS = { way: ["frontier", "reach", "training", "layers", "clients"], frontierX: ["frontier"], frontierY: ["frontier"], trainingX: ["training"], trainingY: ["training"],
  layersX: ["layers"], clientsY: ["clients"], link: ["time"], speed: ["time"], target: ["reach"], fitsOf: ["fits"], fitsY: ["fits"] };

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function sliders(data) {
  const target = document.getElementById("target"), speed = document.getElementById("speed");
  const all = data.methods.flatMap((method) => method.accuracy.flat());
  const low = Math.min(...all), high = Math.max(...data.methods.map((method) => Math.max(...method.final.accuracy)));
  const words = (value) => (data.metric ? short(value) : `${(100 * value).toFixed(1)} %`);
  const setTarget = (value) => {
    state.target = value;
    target.nextElementSibling.textContent = words(value);
    changed("target");
  };
  Object.assign(target, { min: 0, max: 200, value: 200 });
  // Finer near the top, where methods differ.
  const at = (step) => high - (high - low) * (1 - step / 200) ** 2;
  target.addEventListener("input", () => setTarget(at(Number(target.value))));
  const goal = data.target === null ? at(170) : data.target;
  target.value = String(Math.round(200 * (1 - Math.sqrt(Math.max(0, (high - goal) / Math.max(high - low, 1e-12))))));
  state.target = goal;
  target.nextElementSibling.textContent = words(goal);
  Object.assign(speed, { min: 0, max: data.speeds.length - 1 });
  const setSpeed = (step) => {
    speed.value = String(step);
    state.speed = step;
    speed.nextElementSibling.textContent = `${data.speeds[step]} Mbit/s`;
  };
  setSpeed(data.speeds.indexOf(10));
  speed.addEventListener("input", () => { setSpeed(Number(speed.value)); choose("link", null); });
  for (const button of document.querySelectorAll('[data-set="link"]')) button.setAttribute("aria-pressed", "false");
  const pick = document.getElementById("fitsOf");
  if (pick) {
    pick.append(...data.methods.map((method, i) => Object.assign(document.createElement("option"), { value: i, textContent: method.name })));
    pick.addEventListener("change", () => choose("fitsOf", pick.value));
  }
}

async function start() {
  const stored = document.getElementById("data");
  if (!stored || !("DecompressionStream" in window)) return;
  const data = JSON.parse(stored.textContent);
  const script = document.createElement("script");
  script.textContent = await unpacked("charting");
  document.head.append(script);
  sliders(data);
  for (const [key, element] of [["frontierY", "#frontier"], ["trainingY", "#training"]]) {
    if (data.metric) document.querySelectorAll(`${element} [data-to="log"][data-set="${key}"], ${element} [data-to="error"]`).forEach((button) => button.remove());
  }
  document.documentElement.classList.add("drawn");
  const drawing = charts(data);
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover", scrollZoom: false, doubleClick: "reset",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], toImageButtonOptions: { format: "svg" } };

  function draw(name) {
    const place = document.querySelector(`[data-chart="${name}"]`);
    if (!place) return;
    const { traces, layout, said, height } = drawing[name]();
    if (height) place.style.height = `${height}px`;
    place.closest("section").querySelector(".said").textContent = said;
    const narrow = place.clientWidth < 520;
    window.Plotly.react(place, traces, { showlegend: false, hovermode: "closest", dragmode: touch ? false : "zoom", uirevision: JSON.stringify([state.way, state.frontierX, state.frontierY, state.trainingX, state.trainingY, name === "time" ? [state.link, state.speed] : 0]),
      margin: { l: narrow ? 44 : 60, r: 14, t: 12, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: narrow ? 11 : 12.5, color: colour("text") },
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text") }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("line"), activecolor: colour("soft") }, ...layout }, config);
  }
  const drawAll = () => Object.keys(drawing).forEach(draw);
  changed = (key) => (CONCERNS[key] || Object.keys(drawing)).forEach(draw);
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.documentElement.dataset.ready = "yes";
}

start();
