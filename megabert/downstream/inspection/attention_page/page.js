// What is shown is a function of the address: #view=neuron&layer=2&heads=5&token=3 can be kept and passed on.

const VIEWS = {
  head: {
    title: "Heads",
    draw: drawHeadView,
    hint: "Left attends to right. Point at a token for its lines alone, click to keep it; click a head to switch it, with Shift to see it alone.",
  },
  model: { title: "Model", draw: drawModelView, hint: "Layers from top to bottom, heads from left to right. Click one to open it." },
  neuron: {
    title: "Neurons",
    draw: drawNeuronView,
    hint: "Blue is above zero, orange below. Click a token to look from it. The softmax of q\u00b7k / \u221aH over the keys is the attention.",
  },
};

function readState(attention) {
  const given = new URLSearchParams(location.hash.slice(1));
  const whole = (text, most, otherwise) => (/^\d+$/.test(text ?? "") && Number(text) < most ? Number(text) : otherwise);
  const layer = whole(given.get("layer"), Infinity, attention.layers[0]);
  const every = Array.from({ length: attention.heads }, (_, head) => head);
  const heads = (given.get("heads") ?? "").split(",").map((text) => whole(text, attention.heads, -1)).filter((head) => head >= 0);
  return {
    view: Object.hasOwn(VIEWS, given.get("view") ?? "") ? given.get("view") : "head",
    layer: attention.layers.includes(layer) ? layer : attention.layers[0],
    heads: given.has("heads") ? [...new Set(heads)] : every,
    token: whole(given.get("token"), attention.length, null),
    pair: Object.hasOwn(PAIRS, given.get("pair") ?? "") ? given.get("pair") : "all",
    plain: given.get("plain") === "1",
  };
}

function writeState(state) {
  const kept = { view: state.view, layer: state.layer, heads: state.heads.join(","), pair: state.pair };
  if (state.token !== null) kept.token = state.token;
  if (state.plain) kept.plain = 1;
  location.hash = new URLSearchParams(kept).toString();
}

function drawControls(attention, state, change) {
  const controls = document.getElementById("controls");
  const choose = (label, values, current, pick) => {
    const select = make("select", {}, ...values.map((value) => make("option", { value, textContent: value })));
    select.value = current;
    select.onchange = () => change(pick(select.value));
    return make("label", { textContent: label }, select);
  };
  const parts = [];
  if (state.view !== "model") {
    parts.push(choose("Layer", attention.layers.map(String), String(state.layer), (value) => ({ layer: Number(value) })));
  }
  if (state.view === "neuron") {
    const every = Array.from({ length: attention.heads }, (_, head) => String(head));
    parts.push(choose("Head", every, String(state.heads[0]), (value) => ({ heads: [Number(value)] })));
  }
  if (state.view === "head") {
    parts.push(drawSwatches(attention, state, change));
    if (attention.hasPair()) parts.push(choose("Texts", Object.keys(PAIRS), state.pair, (pair) => ({ pair })));
    const plain = make("input", { type: "checkbox", checked: state.plain });
    plain.onchange = () => change({ plain: plain.checked });
    parts.push(make("label", {}, plain, " without first and separator tokens"));
  }
  controls.replaceChildren(...parts);
}

function drawSwatches(attention, state, change) {
  const box = make("span", { className: "swatches" });
  for (let head = 0; head < attention.heads; head += 1) {
    const isOn = state.heads.includes(head);
    const button = make("button", { textContent: head, title: `head ${head}`, ariaPressed: String(isOn) });
    button.style.background = headColor(head, attention.heads);
    button.onclick = (event) => {
      const others = state.heads.filter((other) => other !== head);
      const heads = isOn ? others : [...others, head].sort((a, b) => a - b);
      change({ heads: event.shiftKey ? [head] : heads });
    };
    box.append(button);
  }
  return make("span", { textContent: "Heads " }, box); // a click on a label would press its first button
}

function windowHint(attention, state) {
  if (state.view === "model") {
    return attention.layers.some((layer) => attention.hasWindow(layer)) ? " \u00b1n: the layer sees n tokens to either side." : "";
  }
  if (!attention.hasWindow(state.layer)) return "";
  return ` This layer sees ${attention.reach(state.layer)} tokens to either side; those outside of the window of the chosen token are masked.`;
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const attention = new Attention(data);
  document.getElementById("model").textContent = data.model;
  const draw = () => {
    const state = readState(attention);
    if (state.view === "neuron" && !state.heads.length) state.heads = [0];
    const change = (changes) => writeState({ ...state, ...changes });
    const tabs = Object.entries(VIEWS).map(([view, { title }]) => {
      const button = make("button", { textContent: title, ariaPressed: String(view === state.view) });
      button.onclick = () => change({ view });
      return button;
    });
    document.getElementById("views").replaceChildren(...tabs);
    drawControls(attention, state, change);
    const stage = document.getElementById("stage");
    stage.replaceChildren();
    stage.className = state.view;
    window.onscroll = null;
    VIEWS[state.view].draw(stage, attention, state, change);
    document.getElementById("hint").textContent = VIEWS[state.view].hint + windowHint(attention, state);
  };
  addEventListener("hashchange", draw);
  matchMedia("(prefers-color-scheme: dark)").onchange = () => {
    styles.clear();
    draw();
  };
  draw();
}

start();
