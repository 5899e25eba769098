// Weight updates of a pipeline: all actions of its stages, measured and simulated.

const ACTIONS = {
  F: ["forward", "green"], B: ["backward", "blue"], I: ["backward, input", "sky"], W: ["backward, weights", "purple"],
};

function pipelineRows(timeline) {
  const rows = Array.from({ length: timeline.devices }, (_, device) => ({ label: `device ${device}`, items: [] }));
  for (const [device, action, start, end] of timeline.events) {
    const [, stage, kind, microBatch] = action.match(/^(\d+)([FBIW])(\d+)$/);
    const [name, hue] = ACTIONS[kind];
    const about = () => `stage ${stage}, ${name}, micro-batch ${microBatch}\n${format(end - start, "seconds")}\n` +
      `at ${format(start, "seconds")}, device ${device}`;
    rows[device].items.push({ start, end, text: action, hue, about });
  }
  for (const row of rows) row.items.sort((a, b) => a.start - b.start);
  return rows;
}

function pipelineSection(reports) {
  const parts = [element("p", {}, "One weight update with all its actions: stage, kind and micro-batch. The simulation uses " +
    "the median time of each kind of action, and no time for transfers. The difference to the measurement is overhead " +
    "that the schedule does not cause.")];
  for (const report of reports.filter((one) => one.pipelines.length)) {
    const updates = report.pipelines, caption = element("p");
    const boxes = element("div");
    const choose = (number) => {
      const { measured, simulated, at } = updates[number];
      const end = Math.max(measured.seconds, simulated.seconds), view = new View(0, end);
      boxes.replaceChildren(zoomTools(view));
      for (const [name, timeline] of [["measured", measured], ["simulated", simulated]]) {
        boxes.append(element("h3", {}, `${name}: ${format(timeline.seconds, "seconds")}, bubble ${format(timeline.bubble, "share")}`));
        new Timeline(boxes, pipelineRows(timeline), view, `${name} weight update, bubble ${format(timeline.bubble, "share")}`);
      }
      caption.textContent = `Weight update ${number + 1} of ${updates.length} recorded ones, at ${format(at, "seconds")}; ` +
        `${updates[number].stages} stages, ${updates[number].micro_batches} micro-batches.`;
    };
    parts.push(title(reports, report), caption);
    if (updates.length > 1) {
      parts.push(element("div", { class: "tools" }, element("label", {}, "weight update "), element("input", {
        type: "range", min: 0, max: updates.length - 1, value: updates.length - 1,
        "aria-label": "Weight update", oninput: (event) => choose(Number(event.target.value)),
      })));
    }
    parts.push(boxes);
    choose(updates.length - 1);
  }
  parts.push(legend(Object.values(ACTIONS)));
  return parts;
}
