// Neuron view: how one token's query meets every key: q, k, q x k elementwise, q.k / sqrt(H), softmax.

const STRIPE_WIDTH = 192;
const STRIPE_HEIGHT = 17;

function drawNeuronView(stage, attention, state, change) {
  const head = state.heads[0];
  const token = state.token ?? 0;
  const q = attention.query(state.layer, head, token);
  const [first, stop] = attention.window(state.layer, token);
  const seen = attention.tokens.map((_, other) => other).slice(first, stop);
  const keys = seen.map((other) => attention.key(state.layer, head, other));
  const products = keys.map((k) => k.map((value, index) => value * q[index]));
  const scores = attention.scores(state.layer, head, token);
  const softmax = attention.probabilities(state.layer, head, token);
  const most = (rows) => rows.reduce((best, row) => row.reduce((a, b) => Math.max(a, Math.abs(b)), best), 1e-12);
  const [vectorScale, productScale, scoreScale] = [most([q, ...keys]), most(products), most([scores])];

  const table = make("table", { className: "neurons" });
  const names = ["token", "k", "q \u00d7 k", attention.scoreName(), "softmax"];
  table.append(make("tr", {}, ...names.map((name) => make("th", { textContent: name }))));
  table.append(
    make(
      "tr",
      { className: "query" },
      make("td", { textContent: `q of ${attention.tokens[token]}` }),
      make("td", {}, drawStripe(q, vectorScale)),
      make("td", { colSpan: 3 }),
    ),
  );
  attention.tokens.forEach((text, other) => {
    const name = make("td", { className: `token ${tokenClass(attention, other)}`, textContent: text, title: "look from this token" });
    name.onclick = () => change({ token: other });
    if (!attention.sees(state.layer, token, other)) {
      const masked = [make("td"), make("td"), make("td", { className: "number score", textContent: "masked", data: { value: -Infinity } })];
      masked.push(make("td", { className: "softmax", textContent: "0", data: { value: 0 } }));
      table.append(make("tr", { className: "masked", title: OUTSIDE, data: { token: other } }, name, ...masked));
      return;
    }
    const index = other - first;
    const score = make("td", { className: "number score", textContent: scores[index].toFixed(3), data: { value: scores[index] } });
    score.style.background = signedColor(scores[index] / scoreScale, 0.35);
    const bar = make("span", { className: "bar" });
    bar.style.width = `${Math.max(1, 150 * softmax[index])}px`;
    const share = make("td", { className: "softmax", data: { value: softmax[index] } }, bar, softmax[index].toFixed(4));
    const cells = [name, make("td", {}, drawStripe(keys[index], vectorScale)), make("td", {}, drawStripe(products[index], productScale)), score, share];
    table.append(make("tr", { className: other === token ? "chosen" : "", data: { token: other } }, ...cells));
  });
  stage.append(table);
}

// A vector as a row of cells, blue above zero, orange below; the value of the one under the mouse is its tooltip.
function drawStripe(values, scale) {
  const { canvas, context } = makeCanvas(STRIPE_WIDTH, STRIPE_HEIGHT);
  const cell = STRIPE_WIDTH / values.length;
  values.forEach((value, index) => {
    context.fillStyle = signedColor(value / scale, 1);
    context.fillRect(index * cell, 0, cell + 0.5, STRIPE_HEIGHT);
  });
  canvas.onmousemove = (event) => {
    const index = Math.min(values.length - 1, Math.floor(event.offsetX / cell));
    canvas.title = `[${index}] ${values[index].toFixed(4)}`;
  };
  return canvas;
}

function signedColor(share, opacity) {
  const depth = Math.min(1, Math.abs(share)) ** 0.7; // small values stay visible
  return `rgba(${styleValue(share >= 0 ? "--positive" : "--negative")}, ${depth * opacity})`;
}
