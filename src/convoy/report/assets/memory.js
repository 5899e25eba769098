// Memory of a device: by kind, from operation to operation, and of the whole process.

const KINDS = [
  ["arguments", "blue", (m) => m.argument], ["new results", "orange", (m) => Math.max(0, m.output - m.alias)],
  ["temporary", "green", (m) => m.temp], ["code", "grey", (m) => m.generated_code],
];

function memorySection(reports) {
  const most = Math.max(...reports.flatMap((report) => report.programs.map(total)), 1);
  const parts = [
    element("p", {}, "XLA's own analysis of each compiled program, on each device. Arguments are weights, optimizer " +
      "state and data; results that take an argument's place cost nothing."),
    legend(KINDS.map(([name, hue]) => [name, hue])),
  ];
  for (const report of reports) {
    parts.push(title(reports, report));
    for (const program of report.programs) {
      const bars = KINDS.map(([name, hue, size]) => [name, hue, size(program.memory)]).filter(([, , size]) => size);
      const text = bars.map(([name, , size]) => `${name} ${format(size, "bytes")}`).join("\n");
      const tell = (event) => tip.show(`${program.name}: ${format(total(program), "bytes")}\n${text}`, event);
      parts.push(element("div", { class: "labelled" },
        element("div", {}, `${program.name} `, element("span", { style: "color:var(--soft)" }, format(total(program), "bytes"))),
        element("div", { class: "stack", onpointermove: tell, onpointerdown: tell, onpointerleave: () => tip.hide() },
          bars.map(([, hue, size]) => element("span", { style: `background:var(--${hue});width:${(100 * size) / most}%` })))));
    }
  }
  parts.push(element("h3", {}, "From operation to operation"));
  parts.push(element("p", {}, "Bytes of temporary arrays and new results after each operation, in the order of XLA's " +
    "schedule. Weights and data are not part of it. The dotted line is what XLA sets aside for them."));
  const names = [...new Set(reports.flatMap((report) => report.programs.map((program) => program.name)))];
  const box = element("div"), held = element("div");
  const choice = element("select", { "aria-label": "Program", onchange: () => drawCourse(reports, choice.value, box, held) },
    names.map((name) => element("option", {}, name)));
  parts.push(element("div", { class: "tools" }, choice), box, held);
  drawCourse(reports, names[0], box, held);
  const series = reports.filter((report) => report.host_memory.length).map((report) => ({
    name: `${report.mark || ""} process`.trim(), hue: report.mark === "B" ? "orange" : "blue", points: report.host_memory,
  }));
  if (series.length) {
    const end = Math.max(...reports.map((report) => report.run.seconds));
    const whole = element("div"), view = new View(0, end);
    parts.push(element("h3", {}, "Of the whole process, over time"));
    if (reports.length > 1) parts.push(legend(series.map((one) => [one.name, one.hue])));
    parts.push(whole);
    new Curves(whole, series, view, { unit: "bytes", xUnit: "seconds", xName: "at", label: "Memory of the process", fromZero: true, height: 170 });
  }
  return parts;
}

function drawCourse(reports, name, box, held) {
  const found = reports.map((report) => [report, report.programs.find((program) => program.name === name)]).filter(([, p]) => p);
  const longest = Math.max(1, ...found.map(([, program]) => (program.memory_course.operations || 1) - 1));
  const view = new View(0, longest);
  const series = found.map(([report, program]) => ({
    name: reports.length > 1 ? `${report.mark} ${name}` : name, hue: report.mark === "B" ? "orange" : "green",
    steps: true, dashed: report.mark === "B",
    points: program.memory_course.points.map(([place, bytes, layer, part, operation]) =>
      [place, bytes, [operation, layer && `in ${layer}`, part].filter(Boolean).join(", ")]),
  }));
  const aside = ({ temp, output, alias }) => temp + Math.max(0, output - alias);
  const marks = found.length === 1 ? [["set aside by XLA", aside(found[0][1].memory)]] : [];
  box.replaceChildren(zoomTools(view));
  new Curves(box, series, view, {
    unit: "bytes", xUnit: "count", xName: "operation", fromZero: true, marks, label: `Memory of ${name}, by operation`,
  });
  held.replaceChildren(...found.map(([report, program]) => {
    const { peak, at_peak: arrays } = program.memory_course;
    const columns = [["array"], ["of"], ["layer"], ["pass"], ["bytes", true]];
    const rows = arrays.map((array) =>
      [array.shape, array.operation, array.layer || "–", array.part, format(array.bytes, "bytes")]);
    return element("details", { open: found.length === 1 },
      element("summary", {}, `${report.mark ? `${report.mark}: ` : ""}at the peak, ${format(peak, "bytes")}`),
      tableOf(columns, rows));
  }));
}
