"use strict";
// Queries and keys of every layer and head, and what follows from them: scores q.k / sqrt(H), softmax over keys.
// In a DeBERTa a score has other summands than q.k, all over sqrt(H * summands); positionScores is what they add.

function decodeFloats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

class Attention {
  constructor(data) {
    this.tokens = data.tokens;
    this.length = data.tokens.length;
    this.segmentBStart = data.segmentBStart;
    this.layers = data.layers; // numbers of the layers shown, from 0
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

  // Scaled dot products of one token's query with every key.
  scores(layer, head, token) {
    const q = this.query(layer, head, token);
    const row = ((this.layers.indexOf(layer) * this.heads + head) * this.length + token) * this.length;
    return Array.from({ length: this.length }, (_, other) => {
      const k = this.key(layer, head, other);
      let sum = 0;
      for (let index = 0; index < this.width; index += 1) sum += q[index] * k[index];
      return sum / Math.sqrt(this.width * this.kinds) + (this.positionScores === null ? 0 : this.positionScores[row + other]);
    });
  }

  softmax(layer, head, token) {
    const scores = this.scores(layer, head, token);
    const greatest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    const exponentials = scores.map((score) => Math.exp(score - greatest));
    const sum = exponentials.reduce((a, b) => a + b, 0);
    return exponentials.map((value) => value / sum);
  }

  // Rows of softmax for all tokens of a head. They are cached because the views draw them repeatedly.
  probabilities(layer, head) {
    const name = layer * this.heads + head;
    if (!this.cache.has(name)) {
      this.cache.set(name, this.tokens.map((_, token) => this.softmax(layer, head, token)));
    }
    return this.cache.get(name);
  }

  isSpecial(token) { return [0, this.segmentBStart - 1, this.length - 1].includes(token); }

  hasPair() { return this.segmentBStart < this.length; }

  isSecond(token) { return token >= this.segmentBStart; }
}

function headColor(head, heads, opacity = 1) {
  return `hsla(${Math.round((360 * head) / heads)}, 68%, 42%, ${opacity})`;
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

function tokenClass(attention, token) {
  if (attention.isSpecial(token)) return "special";
  return attention.isSecond(token) ? "second" : "";
}
