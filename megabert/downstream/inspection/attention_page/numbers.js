"use strict";
// Queries and keys of every layer and head, and what follows from them: scores q.k / sqrt(H), softmax over keys.
// In a DeBERTa a score has other summands than q.k, all over sqrt(H * summands); positionScores is what they add.
// A layer with a window masks the tokens that are farther away than its reach: their score is minus infinity.

function decodeFloats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

const FAINTEST = 0.01; // fainter lines cannot be seen
const OUTSIDE = "outside of the layer's window";

class Attention {
  constructor(data) {
    this.tokens = data.tokens;
    this.length = data.tokens.length;
    this.segmentBStart = data.segmentBStart;
    this.layers = data.layers; // numbers of the layers shown, from 0
    this.reaches = data.reaches; // for each of them, the tokens to either side that it sees; null: all
    this.heads = data.heads;
    this.width = data.headWidth;
    this.queries = decodeFloats(data.queries); // (layers, heads, tokens, width)
    this.keys = decodeFloats(data.keys);
    this.kinds = data.kinds;
    this.positionScores = data.positionScores === null ? null : decodeFloats(data.positionScores); // (layers, heads, tokens, tokens)
    this.cache = new Map();
  }

  vector(values, layer, head, token) {
    const row = (this.layers.indexOf(layer) * this.heads + head) * this.length + token;
    return values.subarray(row * this.width, (row + 1) * this.width);
  }

  query(layer, head, token) { return this.vector(this.queries, layer, head, token); }

  key(layer, head, token) { return this.vector(this.keys, layer, head, token); }

  // The formula of the scores, as a heading.
  scoreName() {
    if (this.positionScores === null) return `q\u00b7k / \u221a${this.width}`;
    return `q\u00b7k / \u221a(${this.width} \u00b7 ${this.kinds}) + positions`;
  }

  // How many tokens to either side a layer sees; all of them without a window.
  reach(layer) { return this.reaches[this.layers.indexOf(layer)] ?? this.length; }

  hasWindow(layer) { return this.reach(layer) < this.length - 1; }

  sees(layer, from, to) { return Math.abs(from - to) <= this.reach(layer); }

  // The first token that one token sees in a layer, and the one after the last.
  window(layer, token) {
    const reach = this.reach(layer);
    return [Math.max(0, token - reach), Math.min(this.length, token + reach + 1)];
  }

  // Scaled dot products of one token's query with the keys that it sees, in the order of the tokens.
  scores(layer, head, token) {
    const q = this.query(layer, head, token);
    const row = ((this.layers.indexOf(layer) * this.heads + head) * this.length + token) * this.length;
    const [first, stop] = this.window(layer, token);
    return Float64Array.from({ length: stop - first }, (_, index) => {
      const k = this.key(layer, head, first + index);
      let sum = 0;
      for (let place = 0; place < this.width; place += 1) sum += q[place] * k[place];
      return sum / Math.sqrt(this.width * this.kinds) + (this.positionScores === null ? 0 : this.positionScores[row + first + index]);
    });
  }

  // The softmax of these scores.
  probabilities(layer, head, token) {
    const scores = this.scores(layer, head, token);
    const greatest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    const exponentials = scores.map((score) => Math.exp(score - greatest));
    const sum = exponentials.reduce((a, b) => a + b, 0);
    return exponentials.map((value) => value / sum);
  }

  // The pairs of tokens whose probability can be seen as a line: [from, to, probability]. They are cached because the
  // views draw them repeatedly; a row has at most 1 / FAINTEST of them, whatever the text's length.
  lines(layer, head) {
    const name = layer * this.heads + head;
    if (!this.cache.has(name)) {
      const lines = [];
      for (let from = 0; from < this.length; from += 1) {
        const [first] = this.window(layer, from);
        this.probabilities(layer, head, from).forEach((share, index) => {
          if (share >= FAINTEST) lines.push([from, first + index, share]);
        });
      }
      this.cache.set(name, lines);
    }
    return this.cache.get(name);
  }

  isSpecial(token) { return [0, this.segmentBStart - 1, this.length - 1].includes(token); }

  hasPair() { return this.segmentBStart < this.length; }

  isSecond(token) { return token >= this.segmentBStart; }
}

function headColor(head, heads, opacity = 1) {
  return `hsla(${Math.round((360 * head) / heads)}, 68%, ${styleValue("--lightness")}, ${opacity})`;
}

function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "data") Object.assign(element.dataset, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

// A canvas of CSS pixels that is sharp on dense screens.
function makeCanvas(width, height) {
  const scale = window.devicePixelRatio || 1;
  const canvas = make("canvas", { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { canvas, context };
}

// A style sheet's variable, which the scheme (light or dark) decides.
const styles = new Map();

function styleValue(name) {
  if (!styles.has(name)) styles.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return styles.get(name);
}

function tokenClass(attention, token) {
  if (attention.isSpecial(token)) return "special";
  return attention.isSecond(token) ? "second" : "";
}
