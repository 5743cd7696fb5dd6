#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the page of `trainer watch` in a headless Chromium.

    tests/browser/watch_page.py TRAINER RUN.. [--pictures=FOLDER]

Needs `chromium` and the Python package `websockets`; no part of CI, as its
machines have no browser. Prints what was measured, and exits with 1 if a check
failed. The runs are best made with sample prompts and several ranks.
"""
import argparse
import asyncio
import base64
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

import websockets

PATIENCE = 60  # seconds, for anything
NAMED = {'button', 'checkbox', 'combobox', 'slider', 'spinbutton', 'image'}


class Browser:
    """A page of a headless Chromium, by the DevTools protocol."""

    async def __aenter__(self):
        # Its children may write for a moment longer.
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            ['chromium', '--headless=new', '--no-sandbox', '--disable-gpu',
             '--hide-scrollbars', '--disable-background-networking',
             '--user-data-dir=' + self.folder.name,
             '--remote-debugging-port=0', 'about:blank'],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r'ws://([^/]+)/', line)
            if found:
                break
        pages = json.load(urllib.request.urlopen(
            f'http://{found.group(1)}/json'))
        page = next(page for page in pages if page['type'] == 'page')
        self.socket = await websockets.connect(
            page['webSocketDebuggerUrl'], max_size=None)
        self.answers, self.events = {}, []
        self.reader = asyncio.create_task(self._read())
        for domain in ('Page', 'Runtime', 'Network', 'Log', 'Performance'):
            await self.call(domain + '.enable')
        return self

    async def __aexit__(self, *_):
        self.reader.cancel()
        await self.socket.close()
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    async def _read(self):
        async for text in self.socket:
            message = json.loads(text)
            if 'id' in message:
                self.answers[message['id']].set_result(message)
            else:
                self.events.append(message)

    async def call(self, method, **params):
        number = len(self.answers) + 1
        self.answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send(json.dumps(
            {'id': number, 'method': method, 'params': params}))
        answer = await asyncio.wait_for(self.answers[number], PATIENCE)
        assert 'error' not in answer, (method, answer)
        return answer['result']

    async def run(self, script):
        answer = await self.call('Runtime.evaluate', expression=script,
                                 awaitPromise=True, returnByValue=True)
        assert 'exceptionDetails' not in answer, (script, answer)
        return answer['result'].get('value')

    async def until(self, script):
        for _ in range(PATIENCE * 20):
            value = await self.run(script)
            if value:
                return value
            await asyncio.sleep(0.05)
        raise AssertionError(f'never true: {script}')

    async def show(self, url, width, height, dark=False):
        await self.call('Emulation.setDeviceMetricsOverride', width=width,
                        height=height, deviceScaleFactor=1, mobile=width < 600)
        await self.call('Emulation.setEmulatedMedia', features=[
            {'name': 'prefers-color-scheme',
             'value': 'dark' if dark else 'light'}])
        await self.call('Page.navigate', url=url)
        await self.until(
            "typeof runs !== 'undefined' && runs.length > 0 && "
            "runs.every((run) => run.curves && run.status.state !== 'reading')"
            ' && charts.size > 0')
        # Charts are drawn as they come on the screen.
        await self.run('curveGrid.scrollIntoView()')
        await self.until('[...charts.values()][0].chart !== null')
        await self.run('scrollTo(0, 0)')

    async def picture(self, path):
        made = await self.call('Page.captureScreenshot', format='png')
        pathlib.Path(path).write_bytes(base64.b64decode(made['data']))

    async def mouse(self, kind, x, y):
        await self.call('Input.dispatchMouseEvent', type=kind, x=x, y=y,
                        button='left', clickCount=1)

    async def key(self, key):
        text = key if len(key) == 1 else ''
        await self.call('Input.dispatchKeyEvent', type='keyDown', key=key,
                        text=text)

    async def metrics(self):
        listed = (await self.call('Performance.getMetrics'))['metrics']
        return {metric['name']: metric['value'] for metric in listed}


async def look_closer(browser):
    """By the mouse, by keys, and by buttons."""
    await browser.run('legend.scrollIntoView()')
    left, top, width, height = await browser.run(
        '(() => {const box = curveGrid.children[0].getBoundingClientRect();'
        'return [box.left, box.top, box.width, box.height]})()')
    middle = top + height / 2
    await browser.mouse('mousePressed', left + 0.4 * width, middle)
    await browser.mouse('mouseMoved', left + 0.5 * width, middle)
    await browser.mouse('mouseMoved', left + 0.6 * width, middle)
    await browser.mouse('mouseReleased', left + 0.6 * width, middle)
    await browser.until('view.zoom && runs.some((run) => run.detail)')
    before = await browser.run('view.zoom.max - view.zoom.min')
    await browser.run('curveGrid.children[0].focus()')
    await browser.key('+')
    await browser.until(f'view.zoom.max - view.zoom.min < 0.6 * {before}')
    await browser.key('0')
    await browser.until('view.zoom === null')
    await browser.run("[...document.querySelectorAll('.buttons button')]"
                      ".find((made) => made.textContent === '+').click()")
    await browser.until('view.zoom !== null')
    await browser.run('setZoom(null)')


async def legend(browser):
    """A run that is pointed at in the legend stands out; a click hides it."""
    if await browser.run('runs.length') < 2:
        return
    assert await browser.run(
        "[...legend.querySelectorAll('button')].map((made) =>"
        ' made.textContent).join() === runs.map(({label}) => label).join()')
    await browser.run('legend.children[1].focus()')
    assert await browser.run(
        'view.highlight === 1 && [...charts.values()][0].chart.data.datasets'
        '.every((set) => (set.borderColor === set.color) === (set.run === 1))')
    await browser.run('legend.children[1].blur()')
    assert await browser.run('view.highlight === null')
    await browser.run('legend.children[1].click()')
    assert await browser.run('!runs[1].shown')
    await browser.run('legend.children[1].click()')


async def choose(browser):
    """x axes, smoothing, scale, baseline, and what is hidden."""
    for axis in ('tokens', 'time', 'step'):
        await browser.run(
            "(() => {const pick = document.querySelector('.toolbar select');"
            f"pick.value = '{axis}'; pick.dispatchEvent(new Event('change'))}})()")
        title = await browser.run(
            '[...charts.values()][0].chart.options.scales.x.title.text')
        assert title == await browser.run(f"AXES['{axis}'].title"), title
    await browser.run(
        "document.querySelectorAll('.toolbar input').forEach((made) =>"
        " made.type === 'range' ? (made.value = 0.9, made.dispatchEvent("
        "new Event('input'))) : made.click())")
    assert await browser.run('view.logarithmic && view.smoothing === 0.9 && '
                             '!view.marks')
    await browser.run('runRows[0].baseline.click()')
    assert await browser.run('view.baseline === 0')
    await browser.run("document.getElementById('shown0').click()")
    assert await browser.run('!runs[0].shown')


async def labels(browser):
    """What a screen reader would find without a name."""
    await browser.call('Accessibility.enable')
    tree = (await browser.call('Accessibility.getFullAXTree'))['nodes']
    found = [node for node in tree if not node.get('ignored') and
             node.get('role', {}).get('value') in NAMED]
    assert len(found) > 5, len(found)
    return [node['role']['value'] for node in found
            if not node.get('name', {}).get('value')]


def problems(browser, url):
    """Errors of the page, and requests to anywhere but the server."""
    found = []
    for event in browser.events:
        params = event['params']
        if event['method'] == 'Runtime.exceptionThrown':
            found.append(params['exceptionDetails'])
        elif event['method'] == 'Log.entryAdded':
            found.append(params['entry'])
        elif event['method'] == 'Network.requestWillBeSent':
            if not params['request']['url'].startswith(url.split('?')[0]):
                found.append(params['request']['url'])
    return found


async def check(url, pictures):
    async with Browser() as browser:
        await browser.show(url, 1280, 900)
        paint = await browser.run("performance.getEntriesByName("
                                  "'first-contentful-paint')[0].startTime")
        print(f'first paint after {paint:.0f} ms')
        failed = []
        for width, height in ((1280, 900), (390, 844)):
            for dark in (False, True):
                await browser.show(url, width, height, dark)
                wide = await browser.run('document.documentElement.scrollWidth')
                if wide > width:
                    failed.append(f'{wide} pixels wide on {width}')
                if pictures:
                    theme = 'dark' if dark else 'light'
                    await browser.picture(f'{pictures}/{width}_{theme}.png')
        await browser.show(url, 1280, 900)
        failed += [f'no name: {role}' for role in await labels(browser)]
        await look_closer(browser)
        await legend(browser)
        await choose(browser)
        if await browser.run(
                "document.querySelectorAll('main script, main img, main b')"
                '.length') > 0:
            failed.append('a text has become HTML')
        await browser.call('HeapProfiler.collectGarbage')
        heap = (await browser.metrics())['JSHeapUsedSize']
        print(f'{heap / 1e6:.1f} MB of JavaScript heap')
        return failed + problems(browser, url)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('trainer')
    parser.add_argument('runs', nargs='+')
    parser.add_argument('--pictures')
    options = parser.parse_args()
    watch = subprocess.Popen([options.trainer, 'watch', *options.runs],
                             stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r'http\S+', watch.stdout.readline()).group()
        failed = asyncio.run(check(url, options.pictures))
    finally:
        watch.terminate()
        watch.wait()
    for problem in failed:
        print('FAILED:', problem)
    print('failed' if failed else 'all well')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
