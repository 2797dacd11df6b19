// Head view: lines from each token to the tokens it attends to, a colour a head, opacity the probability.

const ROW = 24;
const WIDTH = 720;
const MOST_PIXELS = 8192; // height of the canvas

const PAIRS = {
  all: () => true,
  "A to A": (attention, from, to) => !attention.isSecond(from) && !attention.isSecond(to),
  "A to B": (attention, from, to) => !attention.isSecond(from) && attention.isSecond(to),
  "B to A": (attention, from, to) => attention.isSecond(from) && !attention.isSecond(to),
  "B to B": (attention, from, to) => attention.isSecond(from) && attention.isSecond(to),
};

function drawHeadView(stage, attention, state, change) {
  const height = ROW * attention.length;
  const box = make("div", { className: "heads" });
  box.style.height = `${height}px`;
  // Browsers limit a canvas: of a long text the visible part is drawn, on a canvas that moves along (position: sticky).
  const shown = Math.min(height, MOST_PIXELS);
  const { canvas, context } = makeCanvas(WIDTH, shown);
  box.append(canvas);
  const isShown = (from, to) =>
    PAIRS[state.pair](attention, from, to) && !(state.plain && (attention.isSpecial(from) || attention.isSpecial(to)));
  let chosen = state.token;
  const draw = () => {
    const top = Math.min(Math.max(0, -box.getBoundingClientRect().top), height - shown);
    context.clearRect(0, 0, WIDTH, shown);
    context.save();
    context.translate(0, -top);
    drawLines(context, attention, state, { isShown, chosen, top: top / ROW, bottom: (top + shown) / ROW });
    context.restore();
  };
  const hover = (token) => {
    chosen = token;
    draw();
    for (const element of box.querySelectorAll(".token")) {
      const own = Number(element.dataset.token);
      if (element.classList.contains("from")) element.classList.toggle("chosen", own === token);
      else element.classList.toggle("masked", token !== null && !attention.sees(state.layer, token, own));
    }
  };
  if (shown < height) window.onscroll = draw;
  for (const side of ["from", "to"]) {
    attention.tokens.forEach((text, token) => {
      const element = make("div", { className: `token ${side} ${tokenClass(attention, token)}`, textContent: text, title: text, data: { token } });
      element.style.top = `${ROW * token}px`;
      if (side === "from") {
        element.onmouseenter = () => hover(token);
        element.onmouseleave = () => hover(state.token);
        element.onclick = () => change({ token: state.token === token ? null : token });
      }
      box.append(element);
    });
  }
  stage.append(box);
  hover(state.token);
  if (state.token !== null) labelTargets(box, attention, state);
}

// Lines of the rows from top to bottom, of one token or of all.
function drawLines(context, attention, state, { isShown, chosen, top, bottom }) {
  context.lineWidth = 2;
  const share = chosen === null ? 0.8 : 1;
  for (const head of state.heads) {
    for (const [from, to, probability] of attention.lines(state.layer, head)) {
      if (chosen !== null && chosen !== from) continue;
      if (Math.max(from, to) < top - 1 || Math.min(from, to) > bottom) continue;
      if (probability * share < FAINTEST || !isShown(from, to)) continue;
      context.strokeStyle = headColor(head, attention.heads, probability * share);
      context.beginPath();
      context.moveTo(216, ROW * (from + 0.5));
      context.bezierCurveTo(330, ROW * (from + 0.5), 390, ROW * (to + 0.5), 504, ROW * (to + 0.5));
      context.stroke();
    }
  }
}

// With a token chosen, each target shows its probabilities: in a tooltip, and as data for programs that read the page.
function labelTargets(box, attention, state) {
  const [first] = attention.window(state.layer, state.token);
  const rows = state.heads.map((head) => attention.probabilities(state.layer, head, state.token));
  for (const element of box.querySelectorAll(".to")) {
    const token = Number(element.dataset.token);
    const isSeen = attention.sees(state.layer, state.token, token);
    const values = rows.map((row) => (isSeen ? row[token - first] : 0));
    element.dataset.probabilities = values.join(" ");
    element.title = isSeen ? state.heads.map((head, index) => `head ${head}: ${values[index].toFixed(4)}`).join("\n") : OUTSIDE;
    const greatest = values.reduce((best, value, index) => (value > values[best] ? index : best), 0);
    if (values.length && isSeen) element.style.background = headColor(state.heads[greatest], attention.heads, 0.45 * values[greatest]);
  }
}
