# SPDX-License-Identifier: Apache-2.0
#
# Asks llama.cpp or transformers, if they are importable, about what was
# exported. Reads a job (JSON) from a file, writes the answer to another:
# "error", if it can't be asked.
import json
import sys


def llama(job):
    from llama_cpp import Llama

    # Keys and values of float32, as in the comparison.
    model = Llama(job["path"], n_ctx=job["context"], n_gpu_layers=0, seed=0,
                  type_k=0, type_v=0, verbose=False)
    ids = [model.tokenize(text.encode(), add_bos=True, special=True)
           for text in job["texts"]]
    greedy = []
    for token in model.generate(job["prompt"], top_k=1, temp=0.0,
                                repeat_penalty=1.0):
        greedy.append(token)
        if len(greedy) == job["count"]:
            break
    return {"ids": ids, "greedy": greedy}


def transformers(job):
    import torch
    from transformers import (AutoConfig, AutoModelForCausalLM,
                              AutoModelForSequenceClassification)

    path = job["path"]
    names = AutoConfig.from_pretrained(path).architectures or [""]
    scores = names[0].endswith("ForSequenceClassification")
    auto = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    try:
        model = auto.from_pretrained(path, dtype=torch.float32)
    except TypeError:  # of an older one
        model = auto.from_pretrained(path, torch_dtype=torch.float32)
    prompt = torch.tensor([job["prompt"]])
    with torch.no_grad():
        if scores:  # at each position, where a call has the last one's
            logits = model.score(model.base_model(prompt)[0])
        else:
            logits = model(prompt).logits
        logits = logits[0].float()
    with open(job["logits"], "wb") as file:
        file.write(logits.contiguous().numpy().tobytes())
    return {"shape": list(logits.shape)}


def main():
    with open(sys.argv[1]) as file:
        job = json.load(file)
    try:
        answer = {"llama": llama, "transformers": transformers}[job["ask"]](job)
    except ModuleNotFoundError as error:
        answer = {"error": "%s isn't importable by python3" % error.name}
    except Exception as error:  # told to the user, in a line
        words = " ".join(str(error).split())
        answer = {"error": "%s: %.300s" % (type(error).__name__, words)}
    with open(sys.argv[2], "w") as file:
        json.dump(answer, file)


main()
