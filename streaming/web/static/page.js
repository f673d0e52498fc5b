// The page asks `/api/now` every few seconds. Whatever comes from a message is set as text, never as HTML.
"use strict";

const EVERY_MS = 5000;
const KEPT_MS = 3600 * 1000;
const $ = (id) => document.getElementById(id);
const charts = { displayModeBar: false, responsive: true };
const layout = {
  margin: { l: 55, r: 10, t: 6, b: 36 }, font: { size: 11 }, legend: { orientation: "h", y: 1.15 },
  xaxis: { gridcolor: "#eef1f5" }, yaxis: { gridcolor: "#eef1f5", rangemode: "tozero" },
};
const counts = new Intl.NumberFormat("en");
let samples = [];
let selection = null;
// For as long as the tab is open.
let token = sessionStorage.getItem("token") || "";

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function count(number) {
  return number === null || number === undefined ? "unknown" : counts.format(number);
}

// As `conf.durations.format_duration` does it.
const UNITS = [["weeks", 604800e3, Infinity], ["days", 86400e3, Infinity], ["h", 3600e3, 48 * 3600e3],
               ["min", 60e3, 120 * 60e3], ["s", 1e3, 120e3]];

function duration(ms) {
  if (ms < 0) return `-${duration(-ms)}`;
  const exact = UNITS.find(([, size, end]) => ms >= size && ms % size === 0 && ms < end);
  const [unit, size] = exact || UNITS.find(([unit, size]) => ms >= (unit === "s" ? size : 2 * size)) || ["ms", 1];
  const number = size > 1 && ms < 10 * size ? +(ms / size).toFixed(1) : Math.round(ms / size);
  return `${number} ${number === 1 ? unit.replace(/(..)s$/, "$1") : unit}`;
}

function instant(ms) {
  const at = new Date(ms);
  return isNaN(at) ? `${ms} ms` : at.toISOString();
}

function away(ms, now) {
  if (ms === null) return "nothing";
  return ms >= now ? `in ${duration(ms - now)}` : `${duration(now - ms)} ago`;
}

function text(value) {
  if (value === null) return "(null)";
  return typeof value === "string" ? value : `base64: ${value.base64}`;
}

async function ask(path, body) {
  const options = { headers: {} };
  if (token) options.headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const found = await answer.json().catch(() => ({}));
  if (answer.status === 401) logOut();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

// The server does not take the token, or not any more: whoever has the right one can type it in.
function logOut() {
  token = "";
  sessionStorage.removeItem("token");
  $("login").hidden = false;
  $("count").hidden = true;
  $("act").hidden = true;
}

// Without lanes, batches do all of the work. If the brokers did not say, there may be some.
function isForwarded(status) {
  return status.forward === null || status.forward.lanes.length > 0;
}

function figures(shown) {
  $("figures").replaceChildren(...shown.map(({ name, value, detail }) => {
    const box = element("div");
    box.append(element("span", name), element("b", value), element("small", detail));
    return box;
  }));
}

function row(cells) {
  const made = element("tr");
  for (const cell of cells) made.append(cell instanceof Node ? cell : element("td", cell));
  return made;
}

function shards(status) {
  const released = new Map((status.release ? status.release.shards : []).map((shard) => [shard.shard, shard]));
  $("shards").tBodies[0].replaceChildren(...status.shards.map((shard) => {
    const last = released.get(shard.shard);
    const late = last && last.at_ms !== null ? last.lateness : null;
    return row([
      shard.shard, count(shard.ready), count(shard.mutable), count(shard.sealed), away(shard.next_due_ms, status.now_ms),
      late ? last.member : "-", late ? `${duration(Math.max(0, status.now_ms - last.at_ms))} ago` : "-",
      late ? count(late.messages) : "-",
      ...(late ? [late.p50_ms, late.p99_ms, late.max_ms].map(duration) : ["-", "-", "-"]),
    ]);
  }));
}

function forwarders(status) {
  const { processes, lanes } = status.forward || { processes: [], lanes: [] };
  const names = processes.map((process) => `${process.name} on ${process.host}`).join(", ") || "no process runs";
  const undecided = lanes.reduce((sum, lane) => sum + lane.undecided, 0);
  $("forward").hidden = !isForwarded(status);
  $("forwarders").textContent = status.forward ? `${names}; ${count(undecided)} records undecided` : "unknown";
  $("lanes").tBodies[0].replaceChildren(...lanes.map((lane) => {
    const forwarder = processes.find((process) => process.lanes.includes(lane.lane));
    return row([lane.lane, count(lane.undecided), lane.owner || "-", forwarder ? forwarder.name : "none"]);
  }));
}

function problems(found) {
  $("problems").tBodies[0].replaceChildren(...(found.length
    ? found.map((one) => row([instant(one.at_ms), one.process, one.level, element("td", one.message, "long")]))
    : [row(["none", "", "", ""])]));
}

function lines(id, drawn) {
  const x = drawn.at_ms || samples.map((sample) => new Date(sample.at_ms));
  const trace = (name, y) => ({ x, y, name, mode: "lines", connectgaps: false });
  const traces = Object.entries(drawn.lines).map(([name, y]) => trace(name, y));
  const axes = { yaxis: { ...layout.yaxis, ...drawn.yaxis } };
  for (const [name, y] of Object.entries(drawn.right || {})) {
    traces.push({ ...trace(name, y), yaxis: "y2", line: { shape: "hv", dash: "dot" } });
    axes.yaxis2 = {
      overlaying: "y", side: "right", rangemode: "tozero", showgrid: false, dtick: 1, tickformat: "d", title: { text: name },
    };
    axes.margin = { ...layout.margin, r: 40 };
  }
  Plotly.react(id, traces, { ...layout, ...axes }, charts);
}

// Events a second between each two samples; none across a restart of what is counted.
function rate(name) {
  return samples.slice(1).map((sample, n) => {
    const before = samples[n];
    if (sample[name] === null || before[name] === null || sample[name] < before[name]) return null;
    return (sample[name] - before[name]) / ((sample.at_ms - before.at_ms) / 1000);
  });
}

function draw(status) {
  const spans = Object.keys(status.due);
  Plotly.react("due", [{ x: spans, y: Object.values(status.due), type: "bar", marker: { color: "#3b6fb6" } }], {
    ...layout, xaxis: { type: "category", title: { text: "due within" } },
    yaxis: { ...layout.yaxis, title: { text: status.due_is_estimated ? "messages (estimated)" : "messages" } },
  }, charts);
  const of = (name) => samples.map((sample) => sample[name]);
  lines("lateness", { lines: { p99: of("p99_ms"), largest: of("max_ms") }, yaxis: { title: { text: "ms" } } });
  lines("rates", {
    at_ms: samples.slice(1).map((sample) => new Date(sample.at_ms)),
    lines: { read: rate("read"), released: rate("released") },
  });
  lines("waiting", { lines: { waiting: of("waiting"), ready: of("ready"), "input lag": of("lag") } });
  lines("buckets", { lines: { buckets: of("buckets"), segments: of("segments") }, right: { merging: of("merging") } });
}

async function refresh() {
  const job = $("job");
  try {
    const since = samples.length ? samples[samples.length - 1].at_ms : 0;
    const now = await ask(`/api/now?since=${since}`);
    samples = samples.concat(now.samples).filter((sample) => sample.at_ms > now.now_ms - KEPT_MS);
    $("application").textContent = now.application_id;
    $("login").hidden = !now.actions || Boolean(token);
    $("count").hidden = !now.actions || !token;
    job.className = now.status ? "good" : "bad";
    job.textContent = now.status
      ? `the job answers at ${now.job}, ${instant(now.status.now_ms)}`
      : `the job at ${now.job} does not answer, or does not know yet what waits`;
    problems(now.problems);
    if (now.status) {
      figures(now.figures);
      shards(now.status);
      forwarders(now.status);
      draw(now.status);
    }
  } catch (problem) {
    job.className = "bad";
    job.textContent = `the page's server does not answer: ${problem.message}`;
  }
  setTimeout(refresh, EVERY_MS);
}

function wanted() {
  const form = new FormData($("look"));
  const fields = { newest: form.has("newest"), limit: Number(form.get("limit")) };
  for (const name of ["due_from", "due_until", "key", "topic"]) if (form.get(name)) fields[name] = form.get(name);
  if (fields.due_from === "now") fields.due_from = "0s";
  const ids = form.get("ids").split(/[\s,]+/).filter(Boolean);
  if (ids.length) fields.ids = ids;
  return fields;
}

function say(said, bad) {
  $("said").textContent = said;
  $("said").className = bad ? "bad" : "";
}

function long(value) {
  const cell = element("td", undefined, "long");
  cell.append(element("div", value));
  return cell;
}

async function busy(what, work) {
  say(`${what} …`);
  const buttons = [...document.querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  try {
    say(await work());
  } catch (problem) {
    say(problem.message, true);
  }
  for (const button of buttons) button.disabled = false;
}

async function look() {
  const { messages, own_spark_because } = await ask("/api/messages", wanted());
  $("messages").hidden = false;
  $("messages").tBodies[0].replaceChildren(...messages.map((message) => {
    const value = text(message.value);
    const more = message.value_bytes > 2000 ? `\n… ${count(message.value_bytes)} bytes` : "";
    return row([
      message.deliver_at, message.place, message.id, message.output_topic, long(text(message.key)), long(value + more),
      long([
        ...(message.repeat ? [`repeats ${message.repeat.rule}, next ${message.repeat.next.join(", ")}`] : []),
        ...message.headers.map(([name, held]) => `${name}: ${text(held)}`),
      ].join("\n")),
    ]);
  }));
  const shown = messages.length ? `${count(messages.length)} shown` : "nothing waits that fits";
  return own_spark_because ? `${shown}; read by the page's own Spark (${own_spark_because})` : shown;
}

async function countAll() {
  selection = await ask("/api/selections", wanted());
  $("chosen").textContent = `${count(selection.count)} messages`;
  $("act").hidden = selection.count === 0;
  return selection.count ? "Cancel, deliver or postpone these, within a quarter of an hour." : "nothing waits that fits";
}

// What is cancelled or delivered does not come back: the form has to be complete, and a person has to agree to the number.
function confirmed(action) {
  const { by } = $("act").elements;
  by.required = action === "postpone";
  if (!$("act").reportValidity()) return;
  const chosen = $("chosen").textContent;
  const [question, doing] = {
    cancel: [`Cancel ${chosen}?`, "cancelling"],
    "deliver-now": [`Deliver ${chosen} now?`, "asking"],
    postpone: [`Postpone ${chosen} by ${by.value}?`, "postponing"],
  }[action];
  if (confirm(question)) busy(doing, () => act(action));
}

async function act(action) {
  const form = new FormData($("act"));
  const fields = { operator: form.get("operator") };
  if (action === "postpone") fields.by = form.get("by");
  $("act").hidden = true;
  const { results } = await ask(`/api/selections/${selection.selection}/${action}`, fields);
  return Object.entries(results).map(([result, number]) => `${count(number)} ${result}`).join(", ");
}

$("look").addEventListener("submit", (event) => {
  event.preventDefault();
  busy("looking; without an answer of the job, the first look starts Spark", look);
});
$("count").addEventListener("click", () => busy("counting", countAll));
$("leave").addEventListener("click", () => { $("act").hidden = true; say(""); });
// Enter in a field acts on nothing: neither button submits the form.
$("act").addEventListener("submit", (event) => event.preventDefault());
for (const action of ["cancel", "deliver-now", "postpone"]) $("act").elements[action].addEventListener("click", () => confirmed(action));
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("token", token);
  $("token").value = "";
  $("login").hidden = true;
  $("count").hidden = false;
});
refresh();
