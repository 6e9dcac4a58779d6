"""What PyTorch takes to move rows at given indices, on one GPU and between two, and to reshard a DTensor over two.

    python3 torch_pages.py [--host] [--samples N] [--part one|two|reshard] [--bytes N]

With --host everything is done in memory of the host, by Gloo: that shows that the program works, and nothing else.
Times are the host's clock around call and wait, of two ranks the slower one's; README.md says what the lines mean.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as spawn

SIZES = {8: 100e6, 24: 100e6, 576: 400e6, 8192: 120000 * 8192}


def report(work, by, page_bytes, pages, times):
    """Prints a line."""
    times = sorted(times)
    at = lambda part: times[round(part * (len(times) - 1))]
    line = {
        "work": work,
        "by": by,
        "page_bytes": page_bytes,
        "pages": pages,
        "median_us": round(1e6 * at(0.5), 2),
        "p10": round(1e6 * at(0.1), 2),
        "p90": round(1e6 * at(0.9), 2),
        "gb_s": round(page_bytes * pages / at(0.5) / 1e9, 1),
    }
    print(json.dumps(line), flush=True)


def timed(call, devices, samples):
    """Seconds of each call, with the wait for all GPUs."""
    times = []
    for i in range(samples + 3):
        start = time.perf_counter()
        call()
        for device in devices:
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
        if i >= 3:
            times.append(time.perf_counter() - start)
    return times


def drawn(pages, ascending, device):
    """Indices of half of the rows of a pool."""
    rows = torch.randperm(2 * pages, device=device)[:pages]
    return rows.sort().values if ascending else rows


def row_work(options, devices):
    """Rows out of a pool into another pool, at given indices of both."""
    here, there = devices[0], devices[-1]
    place = ("one GPU" if here == there else "two GPUs") if not options.host else "host"
    for page_bytes, payload in SIZES.items():
        pages, words = int(payload * options.part_of) // page_bytes, page_bytes // 8
        source = torch.arange(2 * pages * words, dtype=torch.int64, device=here).view(2 * pages, words) + 1
        target = torch.zeros_like(source, device=there)
        for ascending in (True, False):
            start = drawn(pages, ascending, here)
            to = drawn(pages, ascending, there)
            work = f"{place}, {'ascending' if ascending else 'shuffled'}"
            packed = torch.empty(pages, words, dtype=torch.int64, device=here)
            arrived = packed if here == there else torch.empty_like(packed, device=there)

            def gather():
                torch.index_select(source, 0, start, out=packed)

            def scatter():
                target.index_copy_(0, to, arrived)

            def both():
                gather()
                if here != there:
                    arrived.copy_(packed, non_blocking=True)
                scatter()

            target.zero_()
            both()
            for device in {here, there}:
                if device.startswith("cuda"):
                    torch.cuda.synchronize(device)
            good = torch.equal(target[to], source[start].to(there)) and int((target != 0).sum()) == pages * words
            if not good:
                raise SystemExit(f"{work}, rows of {page_bytes}: bytes differ")
            name = "index_select, index_copy_" if here == there else "index_select, copy_, index_copy_"
            if here == there:
                report(work, "index_select", page_bytes, pages, timed(gather, devices, options.samples))
                report(work, "index_copy_", page_bytes, pages, timed(scatter, devices, options.samples))
            report(work, name, page_bytes, pages, timed(both, devices, options.samples))
        del source, target, packed, arrived


def reshard(rank, options):
    """A rank of two: a DTensor of bf16 from rows to columns, and from whole copies to rows."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

    device = "cpu" if options.host else "cuda"
    if not options.host:
        torch.cuda.set_device(rank)
    backend = "gloo" if options.host else "nccl"
    dist.init_process_group(backend, init_method="tcp://127.0.0.1:29543", rank=rank, world_size=2)
    mesh = init_device_mesh(device, (2,))
    side = 1 << ((options.bytes // 2).bit_length() - 1) // 2
    other = options.bytes // 2 // side
    whole = (torch.arange(side * other, device=device) % 251).to(torch.bfloat16).view(side, other)
    cases = {
        "rows to columns": (Shard(0), Shard(1)),
        "replicated to rows": (Replicate(), Shard(0)),
        "replicated to columns": (Replicate(), Shard(1)),
        "rows to replicated": (Shard(0), Replicate()),
    }
    for name, (before, after) in cases.items():
        part = whole if before.is_replicate() else whole.chunk(2, before.dim)[rank].contiguous()
        array = DTensor.from_local(part, mesh, [before], run_check=False)
        moved = array.redistribute(mesh, [after]).to_local()
        want = whole if after.is_replicate() else whole.chunk(2, after.dim)[rank]
        if not torch.equal(moved, want):
            raise SystemExit(f"{name}: bytes differ")
        del moved, want
        times = torch.zeros(options.samples + 3, dtype=torch.float64, device=device)
        for i in range(options.samples + 3):
            dist.barrier()
            if not options.host:
                torch.cuda.synchronize()
            start = time.perf_counter()
            array.redistribute(mesh, [after]).to_local()
            if not options.host:
                torch.cuda.synchronize()
            times[i] = time.perf_counter() - start
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        if rank == 0:
            place = "host, two ranks" if options.host else "two GPUs"
            bytes_all = 2 * side * other
            report(f"{place}, {name}", "DTensor.redistribute", bytes_all, 1, times.tolist()[3:])
        del array, part
    dist.destroy_process_group()


def main():
    """Measures the parts that are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--part", choices=["one", "two", "reshard"], action="append")
    parser.add_argument("--bytes", type=int, default=1 << 30, help="of the DTensor")
    parser.add_argument("--part-of", type=float, default=1.0, help="of the usual number of rows")
    options = parser.parse_args()
    parts = options.part or ["one", "two", "reshard"]
    # NVLink multicast stays off.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    if "one" in parts:
        row_work(options, ["cpu" if options.host else "cuda:0"])
    if "two" in parts and not options.host:
        row_work(options, ["cuda:0", "cuda:1"])
    if "reshard" in parts:
        spawn.spawn(reshard, args=(options,), nprocs=2)


if __name__ == "__main__":
    main()
