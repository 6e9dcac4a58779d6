"""What NIXL takes to write pages at random indices from one process's memory into another's, over UCX.

    PYTHONPATH=FOLDER_OF_NIXL python3 nixl_pages.py [--host] [--samples N] [--seconds S] [PAGE_BYTES:PAGES …]

Two processes, a GPU each (with --host memory of the host); pools hold twice the pages. For each size three lines, from
the first call until the transfer is done, as README.md says: a list never seen before, indices never seen before of
pools that were prepared whole, and the same transfer again. The target compares every byte after each.
"""

import argparse
import json
import multiprocessing
import sys
import time

import numpy as np
import torch  # before NIXL, which finds CUDA's libraries loaded

SIZES = ["8192:16384", "32768:16384", "65536:16384", "8192:120000"]


def nixl():
    """The package's modules are named after the CUDA release."""
    for name in ("nixl_cu13", "nixl_cu12", "nixl"):
        try:
            return __import__(f"{name}._api", fromlist=["nixl_agent"])
        except ModuleNotFoundError as error:
            missing = error
    raise missing


def pattern(first, words, device):
    """Numbers that say where they lie."""
    return (torch.arange(first, first + words, dtype=torch.int64, device=device) + 1) * -7046029254386353131


def agent(name, memory):
    """An agent that has registered `memory`."""
    api = nixl()
    made = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
    made.register_memory(memory)
    return made


def target(pipe, device, pool_bytes):
    """The process that is written to: compares what it is told to."""
    if device != "cpu":
        torch.cuda.set_device(device)
    memory = torch.zeros(pool_bytes // 8, dtype=torch.int64, device=device)
    synchronise(device)
    made = agent("target", memory)
    pipe.send((made.get_agent_metadata(), memory.data_ptr(), max(memory.get_device(), 0)))
    while (order := pipe.recv()) is not None:
        if order == "clear":
            memory.zero_()
            synchronise(device)
            pipe.send(True)
            continue
        source, to, page_bytes = order
        words, wrong = page_bytes // 8, 0
        pages = memory[: memory.numel() // words * words].view(-1, words)
        for at in range(0, len(to), 4096):
            part = slice(at, at + 4096)
            begin = torch.from_numpy(source[part].astype(np.int64)).to(device)[:, None] * words
            want = (begin + torch.arange(words, device=device) + 1) * -7046029254386353131
            wrong += int((pages[torch.from_numpy(to[part].astype(np.int64)).to(device)] != want).sum())
        written = int((memory != 0).sum())
        pipe.send(wrong == 0 and written == len(to) * words)


def synchronise(device):
    """Waits for the GPU, if there is one."""
    if device != "cpu":
        torch.cuda.synchronize()


def finish(made, transfer):
    """Starts a transfer and waits for its end."""
    state = made.transfer(transfer)
    while state == "PROC":
        state = made.check_xfer_state(transfer)
    if state != "DONE":
        sys.exit(f"a transfer ended as {state}")


def report(work, page_bytes, pages, times):
    """Prints a line."""
    times = sorted(times)
    at = lambda part: times[round(part * (len(times) - 1))]
    line = {
        "work": work,
        "by": "NIXL",
        "page_bytes": page_bytes,
        "pages": pages,
        "samples": len(times),
        "median_us": round(1e6 * at(0.5), 2),
        "p10": round(1e6 * at(0.1), 2),
        "p90": round(1e6 * at(0.9), 2),
        "gb_s": round(page_bytes * pages / at(0.5) / 1e9, 2),
    }
    print(json.dumps(line), flush=True)


def main():
    """Starts the target, measures each size, prints lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--samples", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=4.0, help="at most, for each line")
    parser.add_argument("sizes", nargs="*", default=SIZES)
    options = parser.parse_args()
    sizes = [tuple(map(int, size.split(":"))) for size in options.sizes]
    pool_bytes = max(2 * page_bytes * pages for page_bytes, pages in sizes)
    ours, theirs = ("cpu", "cpu") if options.host else ("cuda:0", "cuda:1")
    place, kind = ("host", "DRAM") if options.host else ("two GPUs", "VRAM")

    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    child = context.Process(target=target, args=(other_end, theirs, pool_bytes), daemon=True)
    child.start()
    if ours != "cpu":
        torch.cuda.set_device(ours)
    memory = pattern(0, pool_bytes // 8, ours)
    synchronise(ours)
    made = agent("source", memory)
    metadata, their_base, their_gpu = pipe.recv()
    peer = made.add_remote_agent(metadata)
    made.make_connection(peer)
    base, gpu = memory.data_ptr(), max(memory.get_device(), 0)
    random = np.random.default_rng(43)

    for page_bytes, pages in sizes:

        def draw():
            return [random.permutation(2 * pages)[:pages].astype(np.uint64) for _ in range(2)]

        def described(start, device, indices):
            rows = np.empty((len(indices), 3), dtype=np.uint64)
            rows[:, 0] = np.uint64(start) + indices * np.uint64(page_bytes)
            rows[:, 1], rows[:, 2] = page_bytes, device
            return made.get_xfer_descs(rows, kind)

        def fresh(source, to):
            here, there = described(base, gpu, source), described(their_base, their_gpu, to)
            return made.initialize_xfer("WRITE", here, there, peer)

        whole = np.arange(2 * pages, dtype=np.uint64)
        prepared = [
            made.prep_xfer_dlist("NIXL_INIT_AGENT", described(base, gpu, whole)),
            made.prep_xfer_dlist(peer, described(their_base, their_gpu, whole)),
        ]

        def picked(source, to):
            source, to = source.astype(np.int32), to.astype(np.int32)
            return made.make_prepped_xfer("WRITE", prepared[0], source, prepared[1], to)

        def measure(work, make, again):
            times, transfer = [], None
            pipe.send("clear")
            pipe.recv()
            end = time.monotonic() + options.seconds
            while len(times) <= options.samples and (len(times) < 4 or time.monotonic() < end):
                if transfer is None or not again:
                    if transfer is not None:
                        transfer.release()
                        pipe.send("clear")
                        pipe.recv()
                    lists = draw()
                    transfer = make(*lists) if again else None
                start = time.perf_counter()
                if not again:
                    transfer = make(*lists)
                finish(made, transfer)
                times.append(time.perf_counter() - start)
            pipe.send((*lists, page_bytes))
            if not pipe.recv():
                sys.exit(f"{work}: bytes differ")
            transfer.release()
            report(f"{place}, shuffled, {work}", page_bytes, pages, times[1:])

        measure("new list", fresh, False)
        measure("new indices of prepared pools", picked, False)
        measure("same list", fresh, True)
        for handle in prepared:
            handle.release()
    pipe.send(None)
    child.join(30)


if __name__ == "__main__":
    main()
