"""A training loop: fifty updates while two threads sample, on an engine of this program.

No sample waits for an update, none fails, and each says which weights made it. Begin with
`hotreload tiny ./model --say "policy 1"`.
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from hotreload import HotEngine
from hotreload.tiny import parse_saying
from hotreload.tiny.weights import hand_built

GREEDY = {"temperature": 0, "max_new_tokens": 12}


def policy(number):
    """A tiny model that says this number: arrays of numpy by their Hugging Face names."""
    return hand_built(parse_saying(f"policy {number}"), "qwen3")


def sample(hot, samples, done):
    """What a rollout worker does: ask, all the time, whatever is live."""
    while not done.is_set():
        for answer in hot.generate(["What now?", "And then?"], GREEDY):
            samples.append((answer["meta_info"]["generation"], answer["text"]))


def reward(hot, generation):
    """On-policy: an answer by these weights, or younger ones."""
    answer = hot.generate("What now?", GREEDY, at_least=generation.number)
    return int(answer["text"].split()[-1])


def train(hot, updates=50):
    weights, samples, best, done = policy(0), [], 0, Event()
    live = {hot.generation.number: 0}
    with ThreadPoolExecutor() as workers:
        sampling = [workers.submit(sample, hot, samples, done) for _ in range(2)]
        try:
            for step in range(1, updates + 1):
                for name, fresh in policy(best + 1).items():
                    weights[name][...] = fresh  # in place, as an optimizer does it
                generation = hot.update(weights, name=f"step {step}")
                live[generation.number] = best + 1
                best = max(best, reward(hot, generation))
                if step % 10 == 0:
                    print(f"step {step} is generation {generation.number}, reward {best}")
        finally:
            done.set()
        for each in sampling:
            each.result()
    made_by = {number for number, _ in samples}
    print(f"{len(samples)} samples by {len(made_by)} generations, none failed")
    return live, samples


if __name__ == "__main__":
    small = {"context_length": 256, "max_total_tokens": 4096, "max_running_requests": 8}
    small["chunked_prefill_size"] = 256
    with HotEngine("./model", device="cpu", args=small) as hot:
        train(hot)
