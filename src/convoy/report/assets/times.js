// The timeline of the host and the devices, over the whole run.

const HUES = {
  "input": "orange", "prefetch": "yellow", "device call": "blue", "callbacks": "purple",
  "wait": "sky", "checkpoint": "red", "compile": "grey", "train": "green", "evaluate": "sky", "predict": "purple",
};
const OUTER = new Set(["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"]);
const PLAIN = new Set(["input", "prefetch", "device call", "wait", "callbacks"]);

function timeRows(report) {
  const rows = { outer: [], host: [], inside: [], devices: [] };
  for (const [kind, start, end] of report.spans) {
    const about = () => `${kind}\n${format(end - start, "seconds")}\nat ${format(start, "seconds")}`;
    const row = OUTER.has(kind) ? "outer" : PLAIN.has(kind) ? "host" : "inside";
    rows[row].push({ start, end, text: kind, hue: HUES[kind] || "grey", about });
  }
  for (const [mode, program, start, end, steps, samples] of report.calls) {
    const name = program === null ? "pipeline" : report.programs[program] ? report.programs[program].name : mode;
    const about = () => `${mode}: ${name}\n${format(end - start, "seconds")} for ${steps} steps, ${samples} samples\n` +
      `${format(samples / (end - start), "per second").replace(" /s", " samples/s")}\nat ${format(start, "seconds")}`;
    rows.devices.push({ start, end, text: mode, hue: HUES[mode], about });
  }
  for (const items of Object.values(rows)) items.sort((a, b) => a.start - b.start);
  const labels = { outer: "call", host: "host", inside: "compile, save", devices: "devices" };
  return Object.entries(rows).map(([name, items]) => ({ label: labels[name], items: withoutOverlap(items) }));
}

// A nested call would hide the outer one.
function withoutOverlap(items) {
  const kept = [];
  for (const item of items) {
    const last = kept[kept.length - 1];
    if (last && item.start < last.end && item.end <= last.end) continue;
    kept.push(item);
  }
  return kept;
}

function timesSection(reports) {
  const end = Math.max(...reports.map((report) => report.run.seconds));
  const view = new View(0, end);
  const parts = [
    element("p", {}, "Activity of the host (Python), and below it the device calls. Input is the time that the host " +
      "waits for data; prefetch is the time that it prepares data while the devices compute. Wait is the time in which " +
      "callbacks wait for results of the devices."),
    zoomTools(view),
  ];
  for (const report of reports) {
    const box = element("div");
    const rows = timeRows(report);
    parts.push(title(reports, report), box);
    new Timeline(box, rows, view, `Timeline of ${report.name}: ${rows.map((row) => `${row.items.length} in ${row.label}`).join(", ")}`);
    const left = report.run.totals.rows_left_out;
    if (left) parts.push(element("p", {}, `${format(left, "count")} later spans are included in the totals only.`));
  }
  const kinds = ["compile", "input", "prefetch", "device call", "wait", "callbacks", "checkpoint"];
  parts.push(legend([...kinds.map((kind) => [kind, HUES[kind]]), ["training", "green"], ["evaluation", "sky"], ["prediction", "purple"]]));
  return parts;
}
