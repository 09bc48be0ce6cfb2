// The charts. Each function gives what Plotly draws, from the numbers of the page and the choices in `state`.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const deviation = (values) => Math.sqrt(values.reduce((sum, v) => sum + (v - mean(values)) ** 2, 0) / Math.max(1, values.length - 1));
const short = (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
const columns = (lines, how) => lines[0].map((_, i) => how(lines.map((line) => line[i])));
const added = (a, b) => a.map((value, i) => value + b[i]);
const sent = (of) => (state.way === "total" ? added(of.up, of.down) : of[state.way]);
const ways = { total: "up and down", up: "up", down: "down" };

function charts(data) {
  const percent = !data.metric;
  const scale = (value) => (percent ? 100 * value : value);
  const said = (value) => (percent ? `${scale(value).toFixed(1)} %` : short(value));
  const metric = data.metric || "test accuracy";
  const titled = percent ? `${metric}, %` : metric;
  const methods = data.methods;
  const shown = () => methods.filter((method) => !hidden.has(method.name));
  const finished = () => shown().filter((method) => !method.diverged);

  const lines = (of) => (state.way === "total" ? of.up.map((line, seed) => added(line, of.down[seed])) : of[state.way]);
  const axis = (title, type = "linear", more = {}) => ({ title: { text: title, standoff: 8, font: { size: 12 } }, type, gridcolor: colour("line"), zeroline: false,
    linecolor: colour("line"), tickcolor: colour("line"), automargin: true, ...more });
  const bytesAxis = (type, nticks = 3) => axis(`MB ${ways[state.way]}, all clients${type === "log" ? " (log scale)" : ""}`, type, { ...logTicks(type), nticks });
  function logTicks(type) {
    return type === "log" ? { tickformat: "~g", exponentformat: "none", nticks: 3 } : { rangemode: "tozero" };
  }
  // Near the top a log axis of the error, upside down, shows what a linear one hides.
  const errorAxis = () => axis(`${titled} (log scale of the error)`, "log", { autorange: "reversed", ...errorTicks });
  const errorTicks = { tickvals: [0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 90], ticktext: [99.9, 99.8, 99.5, 99, 98, 97, 96, 95, 93, 90, 85, 80, 70, 50, 30, 10].map(String) };
  const atLeast = (error) => Math.max(error, 0.01);

  function frontier() {
    const logged = percent && state.frontierY === "log";
    const y = (accuracy) => (logged ? atLeast(100 - scale(accuracy)) : scale(accuracy));
    const points = finished().map((method) => ({ method, x: mean(sent(method.final)), accuracy: mean(method.final.accuracy),
      sd: method.final.accuracy.length > 1 ? deviation(method.final.accuracy) : null }));
    const front = points.slice().sort((a, b) => a.x - b.x || b.accuracy - a.accuracy)
      .filter((point, i, all) => all.slice(0, i).every((other) => other.accuracy < point.accuracy));
    const traces = [{ x: front.map((p) => p.x), y: front.map((p) => y(p.accuracy)), mode: "lines", line: { shape: "hv", color: colour("soft"), width: 1.5, dash: "dot" }, hoverinfo: "skip" }];
    for (const { method, x, accuracy, sd } of points) {
      const place = front.findIndex((p) => p.method === method);  // on the frontier; labels take turns above and below
      const best = method.name === data.best;
      const fewer = method.float32 ? "" : timesFewer(method);
      traces.push({ x: [x], y: [y(accuracy)], name: method.name, mode: "markers+text", text: [place < 0 || innerWidth < 600 ? "" : escaped(method.name)],
        textposition: place % 2 ? "top right" : "bottom right", textfont: { color: colour("text"), size: 12 }, cliponaxis: false,
        marker: { color: method.colour, size: best ? 15 : 11, symbol: best ? "star" : "circle", line: { color: colour("card"), width: 1 } },
        error_y: sd === null ? undefined : { type: "data", array: [scale(sd)], color: method.colour, thickness: 1.2, width: 4 },
        hovertemplate: `<b>${escaped(method.name)}</b><br>${said(accuracy)}${sd === null ? "" : ` ± ${percent ? scale(sd).toFixed(1) : short(sd)}`}<br>${short(x)} MB ${ways[state.way]}${fewer}<extra></extra>` });
    }
    const layout = { xaxis: bytesAxis(state.frontierX, 8), yaxis: logged ? errorAxis() : axis(titled), shapes: [], annotations: [] };
    if (state.frontierX === "log" && points.length) layout.xaxis.range = padded(points.map((p) => Math.log10(p.x)));
    if (data.target !== null) {
      const at = y(data.target);
      layout.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: at, y1: at, line: { color: colour("mark"), width: 1.5, dash: "dash" } });
      layout.annotations.push({ xref: "paper", x: 1, xanchor: "right", y: logged ? Math.log10(at) : at, yanchor: "bottom", showarrow: false,
        text: `${said(data.target)}: ${percent ? "a point" : "1 %"} below float32`, font: { color: colour("mark"), size: 12 } });
    }
    return { traces, layout, said: "Further left is cheaper, further up is better. Dotted: the methods that no other beats in both." };
  }

  function padded(values) {
    const low = Math.min(...values), high = Math.max(...values), room = Math.max(0.08, (high - low) * 0.09);
    return [low - room, high + 1.6 * room];
  }

  function timesFewer(method) {
    const whole = methods.find((other) => other.float32 && !other.diverged);
    return whole ? `<br>${short(mean(sent(whole.final)) / mean(sent(method.final)))} × fewer than ${escaped(whole.name)}` : "";
  }

  function reach() {
    const goal = state.target;
    const rows = shown().map((method) => {
      const moved = lines(method);
      const at = method.accuracy.map((line, seed) => { const i = line.findIndex((value, when) => when > 0 && value >= goal - 1e-9); return i < 0 ? null : moved[seed][i]; });
      const reached = at.filter((value) => value !== null);
      return { method, reached, all: reached.length === at.length, mean: reached.length ? mean(reached) : Infinity };
    }).sort((a, b) => (b.all - a.all ? a.all - b.all : b.mean - a.mean));
    const names = rows.map((row) => row.method.name);
    const traces = [];
    for (const row of rows) {
      const { method, reached } = row;
      if (!reached.length) continue;
      traces.push({ x: reached, y: reached.map(() => method.name), mode: "markers", marker: { color: method.colour, size: 6, opacity: 0.45 }, hoverinfo: "skip" });
      traces.push({ x: [row.mean], y: [method.name], name: method.name, mode: "markers", marker: { color: method.colour, size: 12, symbol: row.all ? "diamond" : "diamond-open" },
        hovertemplate: `<b>${escaped(method.name)}</b><br>${short(row.mean)} MB ${ways[state.way]} until ${said(goal)}<br>${reached.length} of ${method.accuracy.length} seeds get there<extra></extra>` });
    }
    const missed = rows.filter((row) => !row.reached.length);
    const layout = { xaxis: bytesAxis("log"), yaxis: axis("", "category", { categoryorder: "array", categoryarray: names, range: [-0.6, names.length - 0.4], showgrid: true, dtick: 1 }),
      annotations: missed.map((row) => ({ xref: "paper", x: 0.5, y: row.method.name, text: "not reached", showarrow: false, font: { color: colour("soft"), size: 12 } })) };
    return { traces, layout, said: "Small dots are seeds, diamonds their mean; an open one: not all seeds get there." };
  }

  function time() {
    const traces = shown().map((method) => {
      const seconds = state.link === null ? method.seconds.speeds[state.speed] : method.seconds.links[Number(state.link)];
      return curve(method, seconds, columns(method.accuracy, mean).map(scale), "s", said);
    });
    const where = state.link === null ? `${data.speeds[state.speed]} Mbit/s` : data.links[Number(state.link)];
    return { traces, layout: { xaxis: axis(`seconds at ${where} (log scale)`, "log", logTicks("log")), yaxis: axis(titled, "linear", nearTheTop()) },
      said: "Computing and coding are measured, transfer is modelled." };
  }

  function nearTheTop() {
    if (!percent) return {};
    const best = scale(Math.max(...methods.map((method) => Math.max(...method.accuracy.flat()))));
    const worst = scale(Math.min(...methods.map((method) => Math.min(...method.accuracy.flat()))));
    return best - 35 > worst ? { range: [best - 35, Math.min(100.5, best + 2)] } : {};
  }

  function curve(method, x, y, unit, words) {
    return { x, y, name: method.name, mode: "lines", line: { color: method.colour, width: 2, dash: method.float32 ? "dash" : "solid" },
      customdata: y.map((value) => words(percent ? value / 100 : value)),
      hovertemplate: `<b>${escaped(method.name)}</b><br>%{customdata} at %{x:.3~g} ${unit}<extra></extra>` };
  }

  function training() {
    const kind = percent || state.trainingY === "loss" ? state.trainingY : "accuracy";
    const traces = [];
    for (const method of shown()) {
      const values = kind === "loss" ? method.loss : method.accuracy;
      const y = (value) => (value === null ? null : kind === "loss" ? value : kind === "error" ? atLeast(100 - scale(value)) : scale(value));
      const from = state.trainingX === "bytes" ? 1 : 0;  // before the first round nothing was sent
      const x = (state.trainingX === "bytes" ? columns(lines(method), mean) : method.rounds).slice(from);
      const kept = values.map((line) => line.slice(from));
      if (values.length > 1) {
        const low = columns(kept, (v) => y(Math.min(...v))), high = columns(kept, (v) => y(Math.max(...v)));
        traces.push({ x: x.concat(x.slice().reverse()), y: low.concat(high.reverse()), fill: "toself", fillcolor: method.colour + "26", line: { width: 0 }, mode: "lines", hoverinfo: "skip" });
      }
      const words = kind === "loss" ? (value) => `loss ${short(value)}` : said;
      const centre = columns(kept, (v) => (v.includes(null) ? null : mean(v)));
      traces.push({ ...curve(method, x, centre.map(y), state.trainingX === "bytes" ? `MB ${ways[state.way]}` : "rounds", words), customdata: centre.map((v) => (v === null ? "" : words(v))) });
    }
    const yaxis = kind === "loss" ? axis("test loss (log scale)", "log", logTicks("log")) : kind === "error" ? errorAxis() : axis(titled, "linear", nearTheTop());
    return { traces, layout: { xaxis: state.trainingX === "bytes" ? bytesAxis("log", 6) : axis("rounds"), yaxis }, said: methods[0].accuracy.length > 1 ? "Means over seeds; shaded is the range between them." : "" };
  }

  function layers() {
    const all = [...new Set(methods.flatMap((method) => [...Object.keys(method.tensors.up), ...Object.keys(method.tensors.down)]))];
    const of = (method, name) => (state.way !== "down" ? method.tensors.up[name] || 0 : 0) + (state.way !== "up" ? method.tensors.down[name] || 0 : 0);
    const largest = all.slice().sort((a, b) => Math.max(...methods.map((m) => of(m, b))) - Math.max(...methods.map((m) => of(m, a)))).slice(0, 24);
    const names = all.filter((name) => largest.includes(name)).reverse();
    const traces = shown().map((method) => {
      const total = all.reduce((sum, name) => sum + of(method, name), 0);
      const kept = names.filter((name) => of(method, name) > 0);
      return { x: kept.map((name) => of(method, name)), y: kept, name: method.name, mode: "markers", marker: { color: method.colour, size: 10, line: { color: colour("card"), width: 1 } },
        customdata: kept.map((name) => (100 * of(method, name) / total).toFixed(1)),
        hovertemplate: `<b>${escaped(method.name)}</b><br>%{y}: %{x:.3~g} MB<br>%{customdata} % of its bytes<extra></extra>` };
    });
    const left = all.length - names.length;
    return { traces, layout: { xaxis: bytesAxis(state.layersX), yaxis: axis("", "category", { categoryorder: "array", categoryarray: names, dtick: 1, range: [-0.6, names.length - 0.4] }) },
      height: Math.max(320, 90 + 26 * names.length), said: left > 0 ? `The ${names.length} largest of ${all.length} tensors.` : "" };
  }

  function clients() {
    const traces = shown().map((method) => {
      const y = sent(method.clients);
      return { x: y.map((_, i) => i), y, name: method.name, mode: y.length > 60 ? "lines" : "lines+markers", line: { color: method.colour, width: 1.5, dash: method.float32 ? "dash" : "solid" },
        marker: { size: 6 }, hovertemplate: `<b>${escaped(method.name)}</b><br>client %{x}: %{y:.3~g} MB<extra></extra>` };
    });
    return { traces, layout: { xaxis: axis("client", "linear", { dtick: methods[0].clients.up.length > 25 ? undefined : 1 }),
      yaxis: axis(`MB ${ways[state.way]} over the whole run`, state.clientsY, logTicks(state.clientsY)) }, said: "" };
  }

  function fits() {
    const method = methods[Number(state.fitsOf)];
    const column = { beta: 2, alpha: 3, zero: 4 }[state.fitsY];
    const names = [...new Set(method.fits.map((fit) => fit[0]))];
    const palette = methods.filter((other) => !other.float32).map((other) => other.colour).concat(["#4e9ad6", "#e15759", "#59a14f", "#f28e2b", "#b07aa1", "#1fb5ac"]);
    const traces = names.map((name, i) => {
      const points = method.fits.filter((fit) => fit[0] === name);
      return { x: points.map((p) => p[1]), y: points.map((p) => (column === 4 ? 100 * p[column] : p[column])), name, mode: "lines+markers", line: { color: palette[i], width: 2 }, marker: { size: 6 },
        hovertemplate: `<b>${escaped(name)}</b><br>%{y:.3~g} after %{x} rounds<extra></extra>` };
    });
    const layout = { xaxis: axis("rounds"), yaxis: column === 2 ? axis("shape β", "linear", { rangemode: "tozero" }) : column === 3 ? axis("scale α (log scale)", "log", { exponentformat: "power" }) : axis("exact zeros, %", "linear", { rangemode: "tozero" }),
      showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, shapes: [], annotations: [] };
    for (const [beta, law] of column === 2 ? [[2, "Gaussian"], [1, "Laplace"]] : []) {
      layout.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: beta, y1: beta, line: { color: colour("soft"), width: 1, dash: "dot" } });
      layout.annotations.push({ xref: "paper", x: 1, xanchor: "right", y: beta, yanchor: "bottom", text: law, showarrow: false, font: { color: colour("soft"), size: 12 } });
    }
    return { traces, layout, said: "GenNorm fits of the first client's updates, of the largest tensors: β = 2 is Gaussian, 1 Laplace, lower is heavier-tailed." };
  }

  return { frontier, reach, time, training, layers, clients, fits };
}

// Plotly reads some HTML in labels; names are not to be read so.
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("%{", "%\u200b{");
}
