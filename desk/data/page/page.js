// SPDX-License-Identifier: Apache-2.0
//
// What the report, which the page holds as JSON (report.cc), says.
'use strict';

const report = JSON.parse(document.getElementById('report').textContent);
const page = document.getElementById('page');

function element(tag, attributes = {}, ...children) {
  const made = tag === 'svg' || tag === 'rect' || tag === 'text' ?
      document.createElementNS('http://www.w3.org/2000/svg', tag) :
      document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function count(number) {
  return number.toLocaleString('en');
}

function addFindings() {
  page.append(
      element('h1', {}, report.title),
      ...report.findings.map(
          (finding) => element(
              'div', {class: `finding ${finding.level}`},
              element('strong', {}, finding.level),
              element('span', {}, finding.text))));
}

function addFacts() {
  const facts =
      [...report.table, ...report.notes.map((note) => ['note', note])];
  page.append(
      element('h2', {}, 'The data'),
      element(
          'dl', {class: 'box'},
          ...facts.flatMap(([name, value]) => [
            element('dt', {}, name), element('dd', {}, value),
          ])));
}

function addLengths() {
  if (report.rows === 0) return;
  const bins = report.lengths.bins;
  const ROW = 20, LABEL = 100, WIDTH = 340, BAR = WIDTH - LABEL - 52;
  const most = Math.max(...bins.map((bin) => bin.rows));
  const svg = element('svg', {
    viewBox: `0 0 ${WIDTH} ${ROW * bins.length}`,
    role: 'img',
    'aria-label': 'rows by their number of tokens',
  });
  bins.forEach((bin, i) => {
    const width = BAR * bin.rows / most;
    const y = ROW * i;
    svg.append(
        element(
            'text', {x: LABEL - 8, y: y + 14, 'text-anchor': 'end'},
            `${count(bin.from)} – ${count(bin.to)}`),
        element('rect', {x: LABEL, y: y + 3, width, height: ROW - 6}),
        element(
            'text', {x: LABEL + width + 6, y: y + 14}, count(bin.rows)));
  });
  page.append(
      element('h2', {}, 'Tokens a row'), element('div', {class: 'box'}, svg));
}

function sizeText(document) {
  return `${count(document.tokens)} tokens, ` +
      `${count(document.trained_tokens)} trained on`;
}

function addSample(sample) {
  const box = element('div', {class: 'box'});
  box.append(element('h3', {}, sample.name));
  if (sample.why !== '') box.append(element('p', {}, sample.why));
  for (const document of sample.documents) {
    box.append(
        element(
            'h3', {class: 'soft'},
            (document.name === '' ? '' : `${document.name}: `) +
                sizeText(document)),
        element(
            'div', {class: 'text'},
            ...document.text.map(
                (run) => run.trained ? element('b', {}, run.text) : run.text)));
  }
  page.append(box);
}

document.title = report.title;
addFindings();
addFacts();
addLengths();
if (report.shown.length > 0) {
  page.append(
      element('h2', {}, 'What it becomes'),
      element(
          'p', {class: 'soft text'}, element('b', {}, 'Like this'),
          ': what is trained on.'));
  report.shown.forEach(addSample);
}
