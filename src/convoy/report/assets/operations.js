// The costs of operations, and the kernel of each convolution.

const SHOWN = 30;

// The roofline bound of an operation: its time at the measured peak compute or memory rate.
function minimumSeconds(row, report) {
  const devices = report.run.devices.length / report.run.process.of || 1;
  return Math.max((row.flops * devices) / report.run.peak.flops_per_second, (row.bytes * devices) / report.run.peak.bytes_per_second);
}

function operationsSection(reports) {
  const names = [...new Set(reports.flatMap((report) => report.programs.map((program) => program.name)))];
  const table = element("div"), more = { all: false };
  const filter = element("input", { type: "search", placeholder: "layer or operation", "aria-label": "Filter" });
  const choice = element("select", { "aria-label": "Program" }, names.map((name) => element("option", {}, name)));
  const draw = () => table.replaceChildren(...operationsTable(reports, choice.value, filter.value.toLowerCase(), more, draw));
  filter.addEventListener("input", draw);
  choice.addEventListener("change", draw);
  draw();
  return [
    element("p", {}, "Costs of one step on one device. The minimum time is the roofline bound: the operations at the " +
      "measured peak compute rate, or the bytes at the measured memory bandwidth, whichever takes longer."),
    element("div", { class: "tools" }, choice, filter), table,
  ];
}

function operationsTable(reports, name, wanted, more, draw) {
  const found = reports.map((report) => [report, report.programs.find((program) => program.name === name)]);
  const rows = new Map();
  found.forEach(([report, program], place) => {
    for (const row of program ? program.operations : []) {
      const key = `${row.layer}|${row.part}|${row.kind}`;
      if (!rows.has(key)) rows.set(key, { row, minimum: reports.map(() => null) });
      rows.get(key).minimum[place] = minimumSeconds(row, report);
    }
  });
  const all = [...rows.values()].filter(({ row }) => `${row.layer} ${row.kind} ${row.part}`.toLowerCase().includes(wanted))
    .sort((a, b) => Math.max(...b.minimum) - Math.max(...a.minimum));
  const most = Math.max(...all.map(({ minimum }) => Math.max(...minimum)), 1e-12);
  const sums = reports.map((_, place) => [...rows.values()].reduce((sum, { minimum }) => sum + (minimum[place] || 0), 0));
  const listed = more.all ? all : all.slice(0, SHOWN);
  const columns = [["layer"], ["pass"], ["operation"], ["count", true], ["operations", true], ["bytes", true],
    ...reports.map((report) => [report.mark ? `minimum time ${report.mark}` : "minimum time", true]), [""]];
  const lines = listed.map(({ row, minimum }) => [
    row.layer || "–", row.part, row.kind, format(row.count, "count"), format(row.flops, "flops"),
    format(row.bytes, "bytes"), ...minimum.map((value) => format(value, "seconds")),
    minimum.map((value, place) => (value === null ? null : costBar(row, value, value / most, value / sums[place], place))),
  ]);
  const rest = element("button", { type: "button", onclick: () => { more.all = true; draw(); } }, `all ${all.length} rows`);
  return [tableOf(columns, lines, { id: "operations-table" }), all.length > listed.length ? rest : ""];
}

function costBar(row, value, width, share, place) {
  const showTip = (event) => tip.show(
    `${[row.layer, row.kind].filter(Boolean).join(", ")}: ${format(value, "seconds")},\n` +
    `${format(share, "share")} of the minimum step time`, event);
  return element("div", { style: "line-height:11px;min-width:90px" }, element("span", {
    class: "bar", style: `width:${Math.max(1, 84 * width)}px;background:var(--${place ? "orange" : "blue"})`,
    onpointermove: showTip, onpointerdown: showTip, onpointerleave: () => tip.hide(),
  }));
}

function convolutionsSection(reports) {
  const parts = [];
  for (const report of reports) {
    const rows = report.programs.flatMap((program) => program.convolutions.map((one) => [program.name, one]));
    const kernels = new Map();
    for (const [, one] of rows) kernels.set(one.kernel, (kernels.get(one.kernel) || 0) + 1);
    parts.push(title(reports, report), element("p", {}, [...kernels].map(([name, count]) => `${count} by ${name}`).join(", ") +
      `. ${report.run.cpu_kernels}.`));
    const columns = [["program"], ["layer"], ["kind"], ["library"], ["kernel"], ["arrays"], ["operations", true]];
    const draw = (list) => tableOf(columns, list.map(([program, one]) => [
      program, one.layer || "–", one.kind, one.kernel, one.implementation || "–",
      `${one.operands.join(" × ")} → ${one.result}`, format(one.flops, "flops"),
    ]));
    const box = element("div", {}, draw(rows.slice(0, SHOWN)));
    if (rows.length > SHOWN) {
      box.append(element("button", { type: "button", onclick: () => box.replaceChildren(draw(rows)) },
        `all ${rows.length} convolutions`));
    }
    parts.push(box);
  }
  return parts;
}
