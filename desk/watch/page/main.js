// SPDX-License-Identifier: Apache-2.0
//
// Puts the page together, and draws anew what has changed.

// By what of a run it shows.
const DRAWERS = [
  [drawRuns, ['status']],
  [drawCurves, ['curves', 'ranks', 'events']],
  [drawRanks, ['ranks']],
  [drawSamples, ['samples']],
  [drawEvaluations, ['status']],
  [drawMemory, ['summary']],
  [drawConfig, ['config']],
  [drawEvents, ['events']],
];
const dirty = new Set();  // names of parts

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

document.title = report.title;
page.append(
    element('h1', {}, report.title), saying, runTable(),
    element('h2', {}, 'Curves'), toolbar(), curveGrid, rankSection.made,
    sampleSection.made, evaluationSection, memorySection, configSection,
    eventSection);
if (report.live) {
  follow(drawLater);
} else {
  report.runs.forEach((run, index) => take({...run, index}));
  drawAll();
}
