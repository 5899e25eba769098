// Rows of bars over time.

const ROW = 26, HEAD = 24;

class Timeline extends Plot {
  // rows: [{label, items: [{start, end, text, hue, about}]}], items in order and not overlapping.
  constructor(parent, rows, view, label) {
    super(parent, view, HEAD + rows.length * ROW + 6, label, () => (this.canvas.clientWidth < 560 ? 74 : 118));
    this.rows = rows;
    this.redraw();
  }

  draw(ink, width) {
    this.axis(ink, "seconds", this.height - 4);
    this.rows.forEach((row, number) => {
      const top = HEAD + number * ROW;
      ink.fillStyle = colour("text");
      ink.textAlign = "left";
      ink.fillText(clip(ink, row.label, this.left - 12), 8, top + ROW / 2);
      ink.save();
      ink.beginPath();
      ink.rect(this.left, top, this.inner, ROW);
      ink.clip();
      this.drawRow(ink, row, top);
      ink.restore();
    });
  }

  drawRow(ink, row, top) {
    let reached = -1;
    for (let place = firstAfter(row.items, this.view.from); place < row.items.length; place++) {
      const item = row.items[place];
      if (item.start > this.view.to) break;
      const begin = this.x(item.start), end = this.x(item.end);
      // Many bars within one pixel are drawn once.
      if (end < reached + 0.6 && end - begin < 0.6) continue;
      const size = Math.max(end - begin, 0.8);
      ink.fillStyle = colour(item.hue);
      ink.fillRect(begin, top + 2, size > 3 ? size - 0.6 : size, ROW - 5);
      reached = end;
      if (item.text && size > 22) {
        const visible = Math.max(begin, this.left), room = Math.min(end, this.left + this.inner) - visible;
        ink.fillStyle = colour("on-bar");
        ink.textAlign = "left";
        const text = clip(ink, item.text, room - 8);
        if (text === item.text || text.length > 4) ink.fillText(text, visible + 4, top + ROW / 2);
      }
    }
  }

  hover(x, y, event) {
    const item = this.find(x, y);
    if (item) tip.show(item.about(), event);
    else tip.hide();
  }

  find(x, y) {
    const row = this.rows[Math.floor((y - HEAD) / ROW)];
    if (!row || x < this.left) return null;
    const at = this.value(x), slack = (2 * this.view.span) / this.inner;
    let best = null, distance = slack;
    for (let place = Math.max(0, firstAfter(row.items, at - slack) - 1); place < row.items.length; place++) {
      const item = row.items[place];
      if (item.start > at + slack) break;
      const away = at < item.start ? item.start - at : at > item.end ? at - item.end : 0;
      if (away < distance || (away === 0 && distance > 0)) [best, distance] = [item, away];
      if (away === 0) break;
    }
    return best;
  }
}

// Returns the first item that ends after a time.
function firstAfter(items, moment) {
  let low = 0, high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].end < moment) low = middle + 1;
    else high = middle;
  }
  return low;
}

function clip(ink, text, room) {
  if (ink.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && ink.measureText(`${text.slice(0, length)}…`).width > room) length--;
  return room > 12 ? `${text.slice(0, length)}…` : "";
}
