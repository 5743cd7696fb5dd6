// SPDX-License-Identifier: Apache-2.0
//
// What pages of runs share: elements, numbers as text, colours. charts.js
// follows in the same script, then the page's own.
'use strict';

const report = JSON.parse(document.getElementById('report').textContent);
const page = document.getElementById('page');
const darkTheme = matchMedia('(prefers-color-scheme: dark)');

// Okabe and Ito's colours, which most people with colour blindness tell apart,
// without the yellow that white drowns; lighter ones on dark pages.
const COLORS = darkTheme.matches ?
    [
      '#4ba3e3', '#f08a4b', '#2bc48f', '#e79ac8', '#d1b84a', '#8fd3ff',
      '#c4ccd4',
    ] :
    [
      '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#8a6d00', '#56b4e9',
      '#3d3d3d',
    ];
// Of the categories of memory.
const MEMORY_COLORS =
    [...COLORS.slice(0, 6), '#a0522d', '#9aa5b1', COLORS[6]];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 4], [4, 2]];

function at(list, index) {
  return list[index % list.length];
}

// Texts are only ever set as text: what a run calls itself, or its model
// writes, is no HTML.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function plural(count, what) {
  return `${count.toLocaleString('en')} ${what}${count === 1 ? '' : 's'}`;
}

function bytesText(bytes) {
  if (bytes === null || bytes === undefined) return '?';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 999.5 && unit + 1 < units.length) {
    bytes /= 1024;
    ++unit;
  }
  return `${Number(bytes.toPrecision(3))} ${units[unit]}`;
}

function secondsText(seconds) {
  if (seconds === null || seconds === undefined) return '?';
  const size = Math.abs(seconds);
  const [scale, unit] = size >= 1 || size === 0 ? [1, 's'] :
      size >= 1e-3                              ? [1e3, 'ms'] :
                                                  [1e6, 'µs'];
  return `${Number((seconds * scale).toPrecision(3))} ${unit}`;
}

// A table, whose cells tell their column's name where narrow screens hide the
// head: `rows` are tr elements. The first `names` columns hold text.
function table(columns, rows, names = 1) {
  const head = element('tr');
  for (const [index, text] of columns.entries()) {
    const name = text.replace('-\n', '').replace('\n', ' ');
    for (const row of rows) row.children[index].dataset.column = name;
    const cell = element(
        'th', {class: index < names ? 'name' : '', scope: 'col'}, text);
    cell.style.whiteSpace = 'pre';
    head.append(cell);
  }
  return element(
      'div', {class: 'scroll', tabindex: '0'},
      element(
          'table', {}, element('thead', {}, head),
          element('tbody', {}, ...rows)));
}
