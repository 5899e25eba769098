// Confusion matrix and worst mistakes of a classifier.

function classificationSection(reports) {
  return reports.filter((report) => report.classification).flatMap((report) => {
    const { class_names: names, matrix, mistakes } = report.classification;
    const parts = report.mark ? [tag(report)] : [];
    parts.push(element("p", {}, "Number of validation images, by their class (rows) and the predicted class (columns)."));
    parts.push(confusionTable(names, matrix));
    if (!mistakes.length) return [...parts, element("p", {}, "No image was classified wrongly.")];
    const shown = mistakes.map((one) => mistakeCard(names, one));
    return [...parts, element("h3", {}, "Worst mistakes"),
      element("p", {}, "Images with the highest probability of a wrong class."),
      element("div", { class: "pictures" }, ...shown)];
  });
}

function confusionTable(names, matrix) {
  const head = element("tr", {}, element("th", {}, ""), ...names.map((name) => element("th", { class: "n" }, name)),
    element("th", { class: "n" }, "correct"));
  const rows = matrix.map((row, label) => {
    const total = row.reduce((sum, count) => sum + count, 0);
    const cells = row.map((count, predicted) => {
      const share = total ? Math.round(100 * count / total) : 0, hue = label === predicted ? "green" : "red";
      return element("td", { class: "n", style: `background: color-mix(in srgb, var(--${hue}) ${share / 2}%, transparent)` },
        count ? String(count) : "·");
    });
    return element("tr", {}, element("th", {}, names[label]), ...cells,
      element("td", { class: "n" }, total ? format(row[label] / total, "share") : "-"));
  });
  return element("div", { class: "wide" }, element("table", { class: "confusion" }, head, ...rows));
}

function mistakeCard(names, one) {
  const text = `${names[one.predicted]} (${format(one.probability, "share")}), not ${names[one.label]}`;
  return element("figure", { title: one.name },
    one.picture ? element("img", { src: one.picture, alt: one.name }) : null,
    element("figcaption", {}, text));
}
