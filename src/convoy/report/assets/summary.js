// The figures of a run, or of two beside each other.

const CARDS = [
  ["training", "a step"], ["training", "samples"], ["time", "devices busy, of the time after compiling"],
  ["training", "share of the measured peak"], ["time", "compiling"], ["time", "waiting for input"],
  ["time", "checkpoint pauses"], ["pipeline", "bubble, measured"],
  ["memory of a device", "largest program of training"], ["evaluation", "samples"],
];

function change(figure, other) {
  if (!other || !figure.value || other.value === null || typeof other.value === "string") return null;
  const ratio = other.value / figure.value - 1;
  const text = `${ratio >= 0 ? "+" : "−"}${Math.abs(100 * ratio).toFixed(1)} %`;
  const matters = figure.better && Math.abs(ratio) >= 0.005;
  const good = (ratio < 0) === (figure.better === "less");
  return element("span", { class: matters ? (good ? "better" : "worse") : "" }, text);
}

function summarySection(reports) {
  const [first, second] = reports;
  const key = (figure) => `${figure.group}/${figure.name}`;
  const beside = new Map((second ? second.figures : []).map((figure) => [key(figure), figure]));
  const cards = CARDS.map(([group, name]) => {
    const figure = first.figures.find((one) => one.group === group && one.name === name);
    if (!figure) return null;
    const other = beside.get(key(figure));
    return element("div", { class: "card" },
      element("div", { class: "name" }, group === "time" ? name : `${group}: ${name}`),
      element("div", { class: "value" }, format(figure.value, figure.unit)),
      other ? element("div", { class: "other" }, `B ${format(other.value, other.unit)} `, change(figure, other)) : null);
  });
  const body = element("tbody");
  let group = "";
  for (const figure of first.figures.concat(second ? second.figures.filter((f) => !first.figures.some((g) => key(g) === key(f))).map((f) => ({ ...f, value: null })) : [])) {
    if (figure.group !== group) {
      group = figure.group;
      body.append(element("tr", { class: "group" }, element("th", { colspan: second ? 4 : 2 }, group)));
    }
    const other = beside.get(key(figure));
    body.append(element("tr", {},
      element("td", {}, figure.name),
      element("td", { class: "n" }, format(figure.value, figure.unit)),
      second ? element("td", { class: "n" }, other ? format(other.value, other.unit) : "–") : null,
      second ? element("td", { class: "n" }, change(figure, other)) : null));
  }
  const head = second ? element("thead", {}, element("tr", {}, element("th", {}, ""),
    element("th", { class: "n" }, "A"), element("th", { class: "n" }, "B"), element("th", { class: "n" }, "B to A"))) : null;
  return [
    element("div", { class: "cards" }, cards),
    element("h3", {}, second ? "All figures, compared" : "All figures"),
    element("div", { class: "wide" }, element("table", { id: "figures" }, head, body)),
  ];
}

function programsSection(reports) {
  const columns = [["program"], ["traced in", true], ["lowered in", true], ["compiled in", true],
    ["runs of a step", true], ["work of a step", true], ["of the peak", true], ["memory", true]];
  return reports.flatMap((report) => {
    const ran = report.run.totals.programs || {};
    const rows = report.programs.map((program, number) => {
      const { trace, lower, compile } = program.seconds;
      const { times, seconds } = ran[number] || { times: 0, seconds: 0 };
      const share = seconds ? (program.flops * times) / seconds / report.run.peak.flops_per_second : null;
      return [program.name, format(trace, "seconds"), format(lower, "seconds"), program.cached ? `${format(compile, "seconds")}, cached` : format(compile, "seconds"),
        format(times, "count"), format(program.flops, "flops"), format(share, "share"), format(total(program), "bytes")];
    });
    return [title(reports, report), tableOf(columns, rows)];
  });
}

function total(program) {
  const memory = program.memory;
  return memory.argument + memory.output - memory.alias + memory.temp;
}

function title(reports, report) {
  if (reports.length === 1) return null;
  return element("h3", {}, tag(report), ` ${report.name}`);
}

function tag(report) {
  return element("span", { class: `tag ${report.mark === "B" ? "b" : ""}` }, report.mark);
}
