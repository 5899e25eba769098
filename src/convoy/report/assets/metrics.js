// Metrics over steps and epochs.

function metricsSection(reports) {
  const parts = [];
  const names = [...new Set(reports.flatMap((report) =>
    report.metrics.flatMap(([, , , values]) => Object.keys(values))
      .concat(report.epochs.flatMap(([, , values]) => Object.keys(values).map((name) => name.replace(/^val_/, "")))))) ];
  for (const name of names) {
    const bySteps = reports.flatMap((report) => [
      metricSeries(report, `${report.mark || ""} training`.trim(), "train", name, report.mark === "B" ? "orange" : "blue", false),
    ]).filter((one) => one.points.length > 1);
    const byEpochs = reports.flatMap((report) => ["", "val_"].map((prefix) => ({
      name: `${report.mark || ""} ${prefix ? "validation" : "training"}`.trim(),
      hue: report.mark === "B" ? (prefix ? "red" : "orange") : (prefix ? "green" : "blue"), dashed: Boolean(prefix),
      points: report.epochs.filter(([, , values]) => typeof values[prefix + name] === "number")
        .map(([epoch, , values]) => [epoch + 1, values[prefix + name]]),
    }))).filter((one) => one.points.length);
    const epochs = byEpochs.some((one) => one.points.length > 1);
    for (const [series, xName] of [[byEpochs, "epoch"], [bySteps, "step"]]) {
      if (!series.length || (xName === "epoch" && !epochs)) continue;
      const xs = series.flatMap((one) => one.points.map(([x]) => x)), box = element("div");
      const view = new View(Math.min(...xs), Math.max(...xs));
      parts.push(element("h3", {}, `${name}, by ${xName}`), legend(series.map((one) => [one.name, one.hue, one.dashed])), box);
      new Curves(box, series, view, { unit: "", xUnit: "count", xName, label: `${name} by ${xName}`, height: 190 });
    }
  }
  return parts.length ? parts : [element("p", {}, "No metrics were recorded.")];
}

function metricSeries(report, label, mode, name, hue, dashed) {
  const rows = report.metrics.filter(([kind, , , values]) => kind === mode && typeof values[name] === "number");
  return { name: label, hue, dashed, points: rows.map(([, step, , values]) => [step, values[name]]) };
}
