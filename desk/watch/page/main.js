// SPDX-License-Identifier: Apache-2.0
//
// Puts the page together, and draws anew what has changed.

// By what of a run it shows.
const DRAWERS = [
  [drawTitle, ['status']],
  [drawRuns, ['status', 'config']],
  [sayAnswer, ['events']],
  [drawCurves, ['curves', 'ranks', 'events', 'config']],
  [drawRows, ['status', 'config']],
  [drawRanks, ['ranks', 'config']],
  [drawSamples, ['samples', 'config']],
  [drawEvaluations, ['status', 'config']],
  [drawMemory, ['summary', 'config']],
  [drawConfig, ['config']],
  [drawEvents, ['events', 'config']],
];
const dirty = new Set();  // names of parts
const heading = element('h1', {}, report.title);

// More runs may have come.
function drawTitle() {
  if (runs.length > 1 && !report.sweep) heading.textContent = `${runs.length} runs`;
  document.title = heading.textContent;
}

// What is shown of one run alone.
function drawSelected() {
  drawRows();
  drawRanks();
  drawSamples();
  drawEvents();
}

function drawAll() {
  DRAWERS.forEach(([draw]) => draw());
}

// Many updates at once are drawn together.
function drawLater(parts) {
  if (dirty.size === 0) {
    requestAnimationFrame(() => {
      const changed = new Set(dirty);
      dirty.clear();
      for (const [draw, shows] of DRAWERS) {
        if (shows.some((part) => changed.has(part))) draw();
      }
    });
  }
  parts.forEach((part) => dirty.add(part));
}

page.append(
    heading, ...(report.sweep ? sweepParts(report.sweep) : []), runTable(),
    saying, element('h2', {}, 'Curves'), toolbar(), legend, curveGrid,
    leftOut,
    rowSection.made, rankSection.made, sampleSection.made,
    evaluationSection, memorySection, configSection, eventSection.made);
drawTitle();
if (report.live) {
  follow(drawLater);
} else {
  report.runs.forEach((run, index) => take({...run, index}));
  drawAll();
  // So that it is whole however it is printed or saved, if that is soon done.
  const MOST_LINES = 200;
  if (charts.size * runs.length <= MOST_LINES) {
    setTimeout(drawAllCurves);
  }
}
