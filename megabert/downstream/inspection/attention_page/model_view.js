// Model view: every layer (a row) and head (a column) in small; a click opens it in the head view.

const THUMB_WIDTH = 68;
const THUMB_HEIGHT = 84;

function drawModelView(stage, attention, state, change) {
  const grid = make("div", { className: "grid" });
  grid.style.gridTemplateColumns = `repeat(${attention.heads + 1}, max-content)`;
  grid.append(make("span", { className: "label", textContent: "layer \\ head" }));
  for (let head = 0; head < attention.heads; head += 1) {
    grid.append(make("span", { className: "label", textContent: String(head) }));
  }
  for (const layer of attention.layers) {
    const window = attention.hasWindow(layer) ? ` \u00b1${attention.reach(layer)}` : "";
    grid.append(make("span", { className: "label", textContent: `${layer}${window}` }));
    for (let head = 0; head < attention.heads; head += 1) {
      const canvas = drawThumb(attention, layer, head);
      canvas.onclick = () => change({ view: "head", layer, heads: [head] });
      grid.append(canvas);
    }
  }
  stage.append(grid);
}

function drawThumb(attention, layer, head) {
  const { canvas, context } = makeCanvas(THUMB_WIDTH, THUMB_HEIGHT);
  const step = (THUMB_HEIGHT - 8) / attention.length;
  context.lineWidth = Math.min(1, step); // long texts: thin lines, or all is one colour
  canvas.title = `layer ${layer}, head ${head}`;
  for (const [from, to, probability] of attention.lines(layer, head)) {
    if (probability < 0.04) continue;
    context.strokeStyle = headColor(head, attention.heads, probability);
    context.beginPath();
    context.moveTo(7, 4 + step * (from + 0.5));
    context.lineTo(THUMB_WIDTH - 7, 4 + step * (to + 0.5));
    context.stroke();
  }
  return canvas;
}
