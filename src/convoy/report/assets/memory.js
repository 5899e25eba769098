// Memory of a device by kind and by operation, and of the host process.

const KINDS = [
  ["arguments", "blue", (m) => m.argument], ["results", "orange", (m) => Math.max(0, m.output - m.alias)],
  ["temporary", "green", (m) => m.temp], ["code", "grey", (m) => m.generated_code],
];

function memorySection(reports) {
  const most = Math.max(...reports.flatMap((report) => report.programs.map(total)), 1);
  const parts = [
    element("p", {}, "XLA's memory analysis of each compiled program, per device. Arguments are weights, optimizer " +
      "state and data. Results that reuse an argument's buffer need no memory of their own."),
    legend(KINDS.map(([name, hue]) => [name, hue])),
  ];
  for (const report of reports) {
    parts.push(title(reports, report));
    for (const program of report.programs) {
      const bars = KINDS.map(([name, hue, size]) => [name, hue, size(program.memory)]).filter(([, , size]) => size);
      const text = bars.map(([name, , size]) => `${name} ${format(size, "bytes")}`).join("\n");
      const showTip = (event) => tip.show(`${program.name}: ${format(total(program), "bytes")}\n${text}`, event);
      parts.push(element("div", { class: "labelled" },
        element("div", {}, `${program.name} `, element("span", { style: "color:var(--soft)" }, format(total(program), "bytes"))),
        element("div", { class: "stack", onpointermove: showTip, onpointerdown: showTip, onpointerleave: () => tip.hide() },
          bars.map(([, hue, size]) => element("span", { style: `background:var(--${hue});width:${(100 * size) / most}%` })))));
    }
  }
  parts.push(element("h3", {}, "By operation"));
  parts.push(element("p", {}, "Temporary arrays and results after each operation, in the order of XLA's schedule, without " +
    "weights and data. The dotted line is the memory that XLA allocates for them."));
  const names = [...new Set(reports.flatMap((report) => report.programs.map((program) => program.name)))];
  const box = element("div"), held = element("div");
  const choice = element("select", { "aria-label": "Program", onchange: () => drawTimeline(reports, choice.value, box, held) },
    names.map((name) => element("option", {}, name)));
  parts.push(element("div", { class: "tools" }, choice), box, held);
  drawTimeline(reports, names[0], box, held);
  const series = reports.filter((report) => report.host_memory.length).map((report) => ({
    name: `${report.mark || ""} process`.trim(), hue: report.mark === "B" ? "orange" : "blue", points: report.host_memory,
  }));
  if (series.length) {
    const end = Math.max(...reports.map((report) => report.run.seconds));
    const whole = element("div"), view = new View(0, end);
    parts.push(element("h3", {}, "Host process, over time"));
    if (reports.length > 1) parts.push(legend(series.map((one) => [one.name, one.hue])));
    parts.push(whole);
    new Curves(whole, series, view, { unit: "bytes", xUnit: "seconds", xName: "at", label: "Memory of the process", fromZero: true, height: 170 });
  }
  return parts;
}

function drawTimeline(reports, name, box, held) {
  const found = reports.map((report) => [report, report.programs.find((program) => program.name === name)]).filter(([, p]) => p);
  const longest = Math.max(1, ...found.map(([, program]) => (program.memory_course.operations || 1) - 1));
  const view = new View(0, longest);
  const series = found.map(([report, program]) => ({
    name: reports.length > 1 ? `${report.mark} ${name}` : name, hue: report.mark === "B" ? "orange" : "green",
    steps: true, dashed: report.mark === "B",
    points: program.memory_course.points.map(([place, bytes, layer, part, operation]) =>
      [place, bytes, [operation, layer && `in ${layer}`, part].filter(Boolean).join(", ")]),
  }));
  const allocated = ({ temp, output, alias }) => temp + Math.max(0, output - alias);
  const marks = found.length === 1 ? [["allocated by XLA", allocated(found[0][1].memory)]] : [];
  box.replaceChildren(zoomTools(view));
  new Curves(box, series, view, {
    unit: "bytes", xUnit: "count", xName: "operation", fromZero: true, marks, label: `Memory of ${name}, by operation`,
  });
  held.replaceChildren(...found.map(([report, program]) => {
    const { peak, at_peak: arrays } = program.memory_course;
    const columns = [["array"], ["operation"], ["layer"], ["pass"], ["size", true]];
    const rows = arrays.map((array) =>
      [array.shape, array.operation, array.layer || "–", array.part, format(array.bytes, "bytes")]);
    return element("details", { open: found.length === 1 },
      element("summary", {}, `${report.mark ? `${report.mark}: ` : ""}at the peak, ${format(peak, "bytes")}`),
      tableOf(columns, rows));
  }));
}
