// The figures of a run (`figures.py`) as cards and as a table, or the comparison of two runs.

// Ids of the figures on cards, as in figures.py.
const CARDS = [
  "train.step_time", "train.throughput", "train.utilisation", "time.device_share", "time.compilation",
  "time.input", "time.pauses", "pipeline.bubble", "memory.train", "evaluate.throughput",
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
  const beside = new Map((second ? second.figures : []).map((figure) => [figure.id, figure]));
  const cards = CARDS.map((id) => {
    const figure = first.figures.find((one) => one.id === id);
    if (!figure) return null;
    const other = beside.get(id);
    return element("div", { class: "card", "data-figure": id },
      element("div", { class: "name" }, figure.group === "time" ? figure.label : `${figure.group}: ${figure.label}`),
      element("div", { class: "value" }, format(figure.value, figure.unit)),
      other ? element("div", { class: "other" }, `B ${format(other.value, other.unit)} `, change(figure, other)) : null);
  });
  const body = element("tbody");
  let group = "";
  const known = new Set(first.figures.map((figure) => figure.id));
  const onlySecond = (second ? second.figures : []).filter((figure) => !known.has(figure.id));
  for (const figure of [...first.figures, ...onlySecond.map((one) => ({ ...one, value: null }))]) {
    if (figure.group !== group) {
      group = figure.group;
      body.append(element("tr", { class: "group" }, element("th", { colspan: second ? 4 : 2 }, group)));
    }
    const other = beside.get(figure.id);
    body.append(element("tr", {},
      element("td", {}, figure.label),
      element("td", { class: "n" }, format(figure.value, figure.unit)),
      second ? element("td", { class: "n" }, other ? format(other.value, other.unit) : "–") : null,
      second ? element("td", { class: "n" }, change(figure, other)) : null));
  }
  const head = second ? element("thead", {}, element("tr", {}, element("th", {}, ""),
    element("th", { class: "n" }, "A"), element("th", { class: "n" }, "B"), element("th", { class: "n" }, "change"))) : null;
  return [
    element("div", { class: "cards" }, cards),
    element("h3", {}, second ? "All figures, compared" : "All figures"),
    element("div", { class: "wide" }, element("table", { id: "figures" }, head, body)),
  ];
}

function programsSection(reports) {
  const columns = [["program"], ["tracing", true], ["lowering", true], ["compilation", true],
    ["runs", true], ["operations per step", true], ["utilisation (MFU)", true], ["memory", true]];
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
