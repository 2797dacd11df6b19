// Head view: lines from each token to the tokens it attends to, a colour a head, opacity the probability.

const ROW = 24;
const FAINTEST = 0.01; // fainter lines cannot be seen

const PAIRS = {
  all: () => true,
  "A to A": (attention, from, to) => !attention.isSecond(from) && !attention.isSecond(to),
  "A to B": (attention, from, to) => !attention.isSecond(from) && attention.isSecond(to),
  "B to A": (attention, from, to) => attention.isSecond(from) && !attention.isSecond(to),
  "B to B": (attention, from, to) => attention.isSecond(from) && attention.isSecond(to),
};

function drawHeadView(stage, attention, state, change) {
  const box = make("div", { className: "heads" });
  box.style.height = `${ROW * attention.length}px`;
  const { canvas, context } = makeCanvas(720, ROW * attention.length);
  box.append(canvas);
  const isShown = (from, to) =>
    PAIRS[state.pair](attention, from, to) && !(state.plain && (attention.isSpecial(from) || attention.isSpecial(to)));
  const draw = (chosen) => drawLines(context, attention, state, isShown, chosen);
  const hover = (token) => {
    draw(token);
    for (const element of box.querySelectorAll(".from")) {
      element.classList.toggle("chosen", Number(element.dataset.token) === token);
    }
  };
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

function drawLines(context, attention, state, isShown, chosen) {
  context.clearRect(0, 0, 720, ROW * attention.length);
  context.lineWidth = 2;
  for (const head of state.heads) {
    const rows = attention.probabilities(state.layer, head);
    const share = chosen === null ? 0.8 : 1;
    rows.forEach((row, from) => {
      if (chosen !== null && chosen !== from) return;
      row.forEach((probability, to) => {
        if (probability * share < FAINTEST || !isShown(from, to)) return;
        context.strokeStyle = headColor(head, attention.heads, probability * share);
        context.beginPath();
        context.moveTo(216, ROW * (from + 0.5));
        context.bezierCurveTo(330, ROW * (from + 0.5), 390, ROW * (to + 0.5), 504, ROW * (to + 0.5));
        context.stroke();
      });
    });
  }
}

// With a token chosen, each target shows its probabilities: in a tooltip, and as data for programs that read the page.
function labelTargets(box, attention, state) {
  for (const element of box.querySelectorAll(".to")) {
    const token = Number(element.dataset.token);
    const values = state.heads.map((head) => attention.probabilities(state.layer, head)[state.token][token]);
    element.dataset.probabilities = values.join(" ");
    element.title = state.heads.map((head, index) => `head ${head}: ${values[index].toFixed(4)}`).join("\n");
    const greatest = values.reduce((best, value, index) => (value > values[best] ? index : best), 0);
    if (values.length) element.style.background = headColor(state.heads[greatest], attention.heads, 0.45 * values[greatest]);
  }
}
