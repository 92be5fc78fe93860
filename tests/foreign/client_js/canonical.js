'use strict';
// Whether the bytes of a JSON text are canonical (RFC 8785): parsed and written again, they are the same.

const DEPTH_MAX = 100;

// Brackets outside strings; before parsing, so that nothing recurses deeper than the limit.
function isTooDeep(text) {
  let depth = 0;
  let isInString = false;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (isInString) {
      if (character === '\\') at++;
      else if (character === '"') isInString = false;
    } else if (character === '"') isInString = true;
    else if (character === '[' || character === '{') {
      if (++depth > DEPTH_MAX) return true;
    } else if (character === ']' || character === '}') depth--;
  }
  return false;
}

function write(value) {
  if (Array.isArray(value)) return `[${value.map(write).join(',')}]`;
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  // sort() compares UTF-16 code units, as the RFC wants
  return `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${write(value[key])}`).join(',')}}`;
}

function isCanonical(bytes) {
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    // A lone surrogate is written as an escape, which UTF-8 could not carry otherwise; no other text has \ud...
    if (isTooDeep(text) || /(?:^|[^\\])(?:\\\\)*\\ud/i.test(text)) return false;
    return write(JSON.parse(text)) === text;
  } catch {
    return false;
  }
}

module.exports = { isCanonical };
