// SPDX-License-Identifier: Apache-2.0
'use strict';
const get = (id) => document.getElementById(id);
const key = new URLSearchParams(location.search).get('key');
const headers = key ? {Authorization: 'Bearer ' + key} : {};
const messages = [];
let running = null;  // the AbortController of an answer that is being written
let conversation = 0;

function say(text, wrong) {
  get('state').textContent = text;
  get('state').className = wrong ? 'wrong' : '';
}

function addTurn(role) {
  const turn = document.createElement('div');
  turn.className = 'turn ' + role;
  const who = document.createElement('span');
  who.className = 'who';
  who.textContent = role === 'user' ? 'You' : get('model').value;
  const text = document.createElement('span');
  turn.append(who, text);
  get('talk').append(turn);
  return text;
}

async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return 'HTTP status ' + response.status;
  }
}

// The objects of a stream of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ''; ;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith('data: {')) yield JSON.parse(part.slice(6));
    }
  }
}

function request() {
  const body = {
    model: get('model').value,
    messages,
    max_tokens: Number(get('tokens').value) || 512,
    stream: true,
    stream_options: {include_usage: true},
  };
  if (get('temperature').value !== '') {
    body.temperature = Number(get('temperature').value);
  }
  return body;
}

async function answer() {
  const place = addTurn('assistant');
  const talk = get('talk');
  const began = performance.now();
  const mine = conversation;
  let text = '', usage = null, end = '';
  running = new AbortController();
  get('send').textContent = 'Stop';
  say('Waiting …');
  try {
    const response = await fetch('v1/chat/completions', {
      method: 'POST',
      headers: {'Content-Type': 'application/json', ...headers},
      body: JSON.stringify(request()),
      signal: running.signal,
    });
    if (!response.ok) throw new Error(await failure(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) usage = event.usage;
      end = event.choices?.[0]?.finish_reason || end;
      const delta = event.choices?.[0]?.delta?.content;
      if (!delta) continue;
      if (!text) say('Writing …');
      const below = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
      text += delta;
      place.textContent = text;
      if (below) talk.scrollTop = talk.scrollHeight;
    }
    const seconds = (performance.now() - began) / 1000;
    const cut = end === 'length' ?
        '; cut off: that is all that "Most tokens" and the model\'s positions allow' : '';
    say(usage ? `${usage.prompt_tokens} tokens read, ${usage.completion_tokens} written in ${Number(seconds.toPrecision(2))} s${cut}` : '');
  } catch (error) {
    if (error.name === 'AbortError') {
      say('Stopped');
    } else {
      say(error.message, true);
    }
  }
  running = null;
  get('send').textContent = 'Send';
  if (mine !== conversation) return say('');
  if (text) {
    messages.push({role: 'assistant', content: text});
  } else {
    get('text').value = messages.pop().content;  // to be sent again
    place.parentElement.previousSibling.remove();
    place.parentElement.remove();
  }
}

get('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = get('text').value.trim();
  if (!text) return;
  messages.push({role: 'user', content: text});
  addTurn('user').textContent = text;
  get('text').value = '';
  get('talk').scrollTop = get('talk').scrollHeight;
  answer();
});
get('text').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) get('ask').requestSubmit();
});
get('new').addEventListener('click', () => {
  if (running) running.abort();
  ++conversation;
  messages.length = 0;
  get('talk').replaceChildren();
  say('');
  get('text').focus();
});

(async () => {
  const response = await fetch('v1/models', {headers});
  if (!response.ok) return say(await failure(response), true);
  for (const model of (await response.json()).data) {
    get('model').append(new Option(model.id));
  }
})();
