// Lines over a common axis, with the nearest values under the pointer.

class Curves extends Plot {
  // series: [{name, hue, dashed, steps, points: [[x, y, about]]}], points in order of x.
  constructor(parent, series, view, settings) {
    super(parent, view, settings.height || 220, settings.label, () => 68);
    Object.assign(this, { series, settings, marked: null });
    this.redraw();
  }

  range() {
    let low = this.settings.fromZero ? 0 : Infinity, high = -Infinity;
    for (const one of this.series) {
      for (const [x, y] of one.points) {
        if (x < this.view.from || x > this.view.to) continue;
        low = Math.min(low, y);
        high = Math.max(high, y);
      }
    }
    for (const [, y] of this.settings.marks || []) high = Math.max(high, y);
    if (!(high >= low)) [low, high] = [0, 1];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.settings.fromZero ? 0 : low - room, high + room];
  }

  draw(ink, width) {
    const bottom = this.height - 8, top = 26, [low, high] = this.range();
    const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
    this.axis(ink, this.settings.xUnit, bottom);
    ink.textAlign = "right";
    for (const tick of ticks(low, high, 4, this.settings.unit)) {
      ink.fillStyle = colour("soft");
      ink.fillText(tickText(tick, high - low, this.settings.unit), this.left - 6, y(tick));
      ink.strokeStyle = colour("line");
      line(ink, [[this.left, y(tick)], [this.left + this.inner, y(tick)]]);
    }
    ink.save();
    ink.beginPath();
    ink.rect(this.left, top - 6, this.inner + 4, bottom - top + 12);
    ink.clip();
    for (const [name, value] of this.settings.marks || []) {
      ink.strokeStyle = colour("grey");
      ink.setLineDash([2, 4]);
      line(ink, [[this.left, y(value)], [this.left + this.inner, y(value)]]);
      ink.setLineDash([]);
      ink.fillStyle = colour("soft");
      ink.textAlign = "left";
      ink.fillText(name, this.left + 6, y(value) + 9);
    }
    for (const one of this.series) {
      ink.strokeStyle = ink.fillStyle = colour(one.hue);
      ink.lineWidth = 1.8;
      ink.setLineDash(one.dashed ? [6, 4] : []);
      const points = one.points.map(([x, value]) => [this.x(x), y(value)]);
      line(ink, one.steps ? stairs(points) : points);
      ink.setLineDash([]);
      if (points.length <= 40) for (const [px, py] of points) dot(ink, px, py, 2.4);
    }
    ink.lineWidth = 1;
    if (this.marked !== null) {
      ink.strokeStyle = colour("soft");
      line(ink, [[this.x(this.marked), top], [this.x(this.marked), bottom]]);
      for (const one of this.series) {
        const point = nearest(one.points, this.marked);
        if (!point) continue;
        ink.fillStyle = colour(one.hue);
        dot(ink, this.x(point[0]), y(point[1]), 4);
      }
    }
    ink.restore();
  }

  hover(x, y, event) {
    if (x < this.left) return this.leave();
    const at = this.value(x);
    const found = this.series.map((one) => [one, nearest(one.points, at)]).filter(([, point]) => point);
    if (!found.length) return this.leave();
    this.marked = found.map(([, point]) => point[0])
      .reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a));
    const lines = found.map(([one, point]) =>
      `${one.name}: ${format(point[1], this.settings.unit)}${point[2] ? `\n${point[2]}` : ""}`);
    tip.show([`${this.settings.xName} ${format(this.marked, this.settings.xUnit)}`, ...lines].join("\n"), event);
    this.redraw();
    return undefined;
  }

  leave() {
    tip.hide();
    if (this.marked !== null) {
      this.marked = null;
      this.redraw();
    }
  }
}

function line(ink, points) {
  ink.beginPath();
  points.forEach(([x, y], place) => (place ? ink.lineTo(x, y) : ink.moveTo(x, y)));
  ink.stroke();
}

function dot(ink, x, y, size) {
  ink.beginPath();
  ink.arc(x, y, size, 0, 2 * Math.PI);
  ink.fill();
}

function stairs(points) {
  return points.flatMap(([x, y], place) => (place + 1 < points.length ? [[x, y], [points[place + 1][0], y]] : [[x, y]]));
}

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  if (high < 0) return null;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(points[high][0] - x) < Math.abs(points[low][0] - x) ? points[high] : points[low];
}
