// Assembles the page.

const reports = JSON.parse(document.getElementById("data").textContent);
if (reports.length > 1) reports.forEach((report, place) => { report.mark = "AB"[place]; });

function runLine(report) {
  const { run } = report, last = run.runs[run.runs.length - 1];
  const model = last ? last.model : null;
  const state = {
    running: "running when this page was made", failed: `failed: ${run.error}`,
    stopped: "preempted; can be resumed", ended: "ended",
  };
  const failed = run.runs.find((one) => one.error);
  return element("div", { class: "run" }, report.mark ? tag(report) : null, element("b", {}, report.name),
    model ? element("span", {}, `${model.name}, ${format(model.parameters, "count")} parameters`) : null,
    element("span", {}, `${run.devices.length} × ${run.devices[0].split(":")[0]}`),
    model && model.stages > 1 ? element("span", {}, `${model.stages} stages, ${model.schedule}`) : null,
    model && model.replicas > 1 ? element("span", {}, `${model.replicas} replicas`) : null,
    model && model.gradient_accumulation > 1 ? element("span", {}, `gradient accumulation ${model.gradient_accumulation}`) : null,
    element("span", {}, new Date(run.began * 1000).toISOString().slice(0, 16).replace("T", " ")),
    element("span", { class: `state ${failed ? "failed" : run.state}`, title: last && last.stopped ? last.stopped : null },
      failed ? `${failed.name}: ${failed.error}` : state[run.state]));
}

function sections() {
  const has = (name) => reports.some((report) => report[name].length);
  return [
    ["summary", reports.length > 1 ? "Compare" : "Summary", () => summarySection(reports), true],
    ["classification", "Classification", () => classificationSection(reports), reports.some((r) => r.classification)],
    ["timeline", "Timeline", () => timesSection(reports), has("spans")],
    ["pipeline", "Pipeline", () => pipelineSection(reports), has("pipelines")],
    ["memory", "Memory", () => memorySection(reports), has("programs")],
    ["operations", "Operations", () => operationsSection(reports), has("programs")],
    ["convolutions", "Convolutions", () => convolutionsSection(reports), reports.some((r) => r.programs.some((p) => p.convolutions.length))],
    ["metrics", "Metrics", () => metricsSection(reports), has("metrics") || has("epochs")],
    ["programs", "Programs", () => programsSection(reports), has("programs")],
  ].filter(([, , , wanted]) => wanted);
}

// In the frame of a notebook, a fragment refers to the notebook's page, not to this one.
function scrollInFrame(event, name) {
  if (location.protocol !== "about:") return;
  event.preventDefault();
  scrollTo({ top: scrollY + document.getElementById(name).getBoundingClientRect().top });
}

document.getElementById("runs").append(...reports.map(runLine));
for (const [name, heading, make] of sections()) {
  const link = element("a", { href: `#${name}` }, heading);
  link.addEventListener("click", (event) => scrollInFrame(event, name));
  document.getElementById("nav").append(link);
  document.getElementById("main").append(element("section", { id: name }, element("h2", {}, heading), make()));
}
const { framework } = reports[0].run;
document.getElementById("main").append(element("footer", {},
  `${Object.entries(framework.versions).map(([name, version]) => `${name} ${version}`).join(", ")}, Python ${framework.python}; ${framework.system}, ` +
  `${framework.processors} processors. Measured peak: ${format(reports[0].run.peak.flops_per_second, "flops per second")} in float32, ` +
  `${format(reports[0].run.peak.bytes_per_second, "bytes")}/s.`));
document.documentElement.dataset.ready = "yes";
