"""Messages, collectives and windows of CuPy arrays and NumPy arrays, plain and non-contiguous, by mpi4py.

    mpiexec -n 2 python device.py

Each case fills memory with numbers that say where they lie, moves them, and compares every byte of the target with what
NumPy says, also those that must not change. Prints a line for each case that fails, and a sum. Needs a CUDA device.
"""

import sys

import cupy
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
# An odd one out talks to itself.
other = rank ^ 1 if rank ^ 1 < size else rank
cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
passed, failed = 0, []


def struct():
    """An integer, a gap, three floating-point numbers: 32 bytes, 4 of them unused."""
    it = MPI.Datatype.Create_struct([1, 3], [0, 8], [MPI.INT, MPI.DOUBLE])
    return it


def layouts(items):
    """Name, datatype, count: all within `items` numbers of 8 bytes."""
    n = items // 4
    side = 4
    while (2 * side) ** 3 <= items:
        side *= 2
    lengths = [1 + i % 3 for i in range(n // 8)]
    places = [8 * i + i % 5 for i in range(n // 8)]
    return [
        ("whole", MPI.DOUBLE, n),
        ("vector", MPI.DOUBLE.Create_vector(n // 2, 1, 2), 1),
        ("blocks", MPI.DOUBLE.Create_vector(n // 16, 8, 16), 2),
        ("box", MPI.DOUBLE.Create_subarray([side] * 3, [side // 2] * 3, [1, side // 2, 0]), 1),
        ("list", MPI.DOUBLE.Create_indexed(lengths, places), 1),
        ("struct", struct(), n // 8),
        ("bytes", MPI.BYTE.Create_vector(n // 4, 3, 7), 1),
    ]


def touched(datatype, count, items):
    """Which bytes a count of a datatype has: by a message on the host."""
    marks, ones = numpy.zeros(items * 8, numpy.uint8), numpy.ones(items * 8, numpy.uint8)
    MPI.COMM_SELF.Sendrecv([ones, count, datatype], 0, 9, [marks, count, datatype], 0, 9)
    assert marks.sum() == datatype.Get_size() * count
    return marks.astype(bool)


def new(items, device, seed):
    """Numbers that say where they are."""
    host = numpy.arange(items, dtype=numpy.int64) * 7919 + seed
    return cupy.asarray(host) if device else host


def host_bytes(array):
    return cupy.asnumpy(array).view(numpy.uint8) if isinstance(array, cupy.ndarray) else array.view(numpy.uint8)


def check(name, good):
    global passed
    if good:
        passed += 1
    else:
        failed.append(name)
        print(f"rank {rank}: wrong: {name}", flush=True)


def attempt(name, act):
    try:
        check(name, act())
    except MPI.Exception as error:
        check(f"{name}: {error}", False)


def expected(before, sent, datatype, count, items):
    """The target after it received what a target of the same layout and seed had."""
    after, mask = before.copy(), touched(datatype, count, items)
    after[mask] = sent[mask]
    return after


def messages(items):
    ways = {
        "sendrecv": lambda s, r: world.Sendrecv(s, other, 3, r, other, 3),
        "isend": lambda s, r: MPI.Request.Waitall([world.Irecv(r, other, 4), world.Isend(s, other, 4)]),
        "ssend": lambda s, r: MPI.Request.Waitall([world.Irecv(r, other), world.Issend(s, other)]),
        "persistent": persistent,
        "self": lambda s, r: MPI.COMM_SELF.Sendrecv(s, 0, 5, r, 0, 5),
    }
    for name, datatype, count in layouts(items):
        if datatype != MPI.DOUBLE:
            datatype.Commit()
        for source in (True, False):
            for target in (True, False):
                for way, act in ways.items():
                    def case():
                        out, into = new(items, source, 1), new(items, target, 1 << 40)
                        cupy.cuda.runtime.deviceSynchronize()
                        before = host_bytes(into).copy()
                        act([out, count, datatype], [into, count, datatype])
                        want = expected(before, host_bytes(out), datatype, count, items)
                        return bool((host_bytes(into) == want).all())
                    places = "->".join("cuda" if it else "host" for it in (source, target))
                    attempt(f"{way} {name} {items} {places}", case)


def persistent(send, recv):
    both = [world.Recv_init(recv, other, 6), world.Send_init(send, other, 6)]
    for _ in range(3):
        MPI.Prequest.Startall(both)
        MPI.Request.Waitall(both)
    for one in both:
        one.Free()


def collectives(items, device):
    xp = cupy if device else numpy
    place = "cuda" if device else "host"
    own = xp.arange(items, dtype=xp.float64) + rank * 1000

    def of(r):
        return numpy.arange(items, dtype=numpy.float64) + r * 1000

    def same(array, want):
        return bool((cupy.asnumpy(array) == want).all() if device else (array == want).all())

    def case(name, act):
        xp is cupy and cupy.cuda.runtime.deviceSynchronize()
        attempt(f"{name} {items} {place}", act)

    def bcast():
        it = own.copy()
        cupy.cuda.runtime.deviceSynchronize()
        world.Bcast(it, 0)
        return same(it, of(0))

    def allreduce(op, fold):
        def act():
            into = xp.zeros(items)
            cupy.cuda.runtime.deviceSynchronize()
            world.Allreduce(own, into, op)
            return same(into, fold([of(r) for r in range(size)]))
        return act

    def in_place():
        it = own.copy()
        cupy.cuda.runtime.deviceSynchronize()
        world.Allreduce(MPI.IN_PLACE, it, MPI.SUM)
        return same(it, sum(of(r) for r in range(size)))

    def user():
        def add(a, b, _):
            numpy.frombuffer(b, numpy.float64)[:] += numpy.frombuffer(a, numpy.float64)
        op = MPI.Op.Create(add, True)
        into = xp.zeros(items)
        cupy.cuda.runtime.deviceSynchronize()
        world.Allreduce(own, into, op)
        op.Free()
        return same(into, sum(of(r) for r in range(size)))

    def reduce():
        into = xp.zeros(items)
        cupy.cuda.runtime.deviceSynchronize()
        world.Reduce(own, into if rank == 0 else None, MPI.SUM, 0)
        return rank != 0 or same(into, sum(of(r) for r in range(size)))

    def scan():
        into = xp.zeros(items)
        cupy.cuda.runtime.deviceSynchronize()
        world.Scan(own, into)
        return same(into, sum(of(r) for r in range(rank + 1)))

    def reduce_scatter():
        into = xp.zeros(items // size)
        cupy.cuda.runtime.deviceSynchronize()
        world.Reduce_scatter_block([own, items // size, MPI.DOUBLE], into)
        part = slice(rank * (items // size), (rank + 1) * (items // size))
        return same(into, sum(of(r) for r in range(size))[part])

    def allgather():
        into = xp.zeros(items * size)
        cupy.cuda.runtime.deviceSynchronize()
        world.Allgather(own, into)
        return same(into, numpy.concatenate([of(r) for r in range(size)]))

    def alltoall():
        into = xp.zeros(items)
        part = items // size
        cupy.cuda.runtime.deviceSynchronize()
        world.Alltoall([own, part, MPI.DOUBLE], [into, part, MPI.DOUBLE])
        want = [of(r)[rank * part:][:part] for r in range(size)]
        return bool((host(into)[: part * size] == numpy.concatenate(want)).all())

    def alltoallv():
        counts = [1 + (rank + r) % 3 for r in range(size)]
        places = [4 * r for r in range(size)]
        into = xp.zeros(4 * size)
        cupy.cuda.runtime.deviceSynchronize()
        world.Alltoallv([own, counts, places, MPI.DOUBLE], [into, counts, places, MPI.DOUBLE])
        want = numpy.zeros(4 * size)
        for r in range(size):
            want[4 * r:][: counts[r]] = of(r)[4 * rank:][: counts[r]]
        return same(into, want)

    def gather():
        into = xp.zeros(items * size)
        cupy.cuda.runtime.deviceSynchronize()
        world.Gather(own, into if rank == size - 1 else None, size - 1)
        return rank != size - 1 or same(into, numpy.concatenate([of(r) for r in range(size)]))

    def scatter():
        into = xp.zeros(items // size)
        cupy.cuda.runtime.deviceSynchronize()
        world.Scatter([own, items // size, MPI.DOUBLE], into, 0)
        return same(into, of(0)[rank * (items // size):][: items // size])

    def non_blocking():
        first, second = xp.zeros(items), own.copy()
        cupy.cuda.runtime.deviceSynchronize()
        MPI.Request.Waitall([world.Iallreduce(own, first, MPI.MAX), world.Ibcast(second, size - 1)])
        return same(first, of(size - 1)) and same(second, of(size - 1))

    def host(array):
        return cupy.asnumpy(array) if device else array

    fold = {"sum": (MPI.SUM, sum), "max": (MPI.MAX, lambda all: numpy.maximum.reduce(all)),
            "prod": (MPI.PROD, lambda all: numpy.multiply.reduce(all))}
    for name, (op, act) in fold.items():
        case(f"allreduce {name}", allreduce(op, act))
    for act in (bcast, in_place, user, reduce, scan, reduce_scatter, allgather, alltoall, alltoallv, gather, scatter,
                non_blocking):
        case(act.__name__, act)


def windows(items, device, origin_device):
    xp, origin = (cupy if device else numpy), (cupy if origin_device else numpy)
    name = f"{items} {'cuda' if origin_device else 'host'}->{'cuda' if device else 'host'}"
    memory = xp.arange(items, dtype=xp.int64)
    give, take = origin.full(items, 5 + rank, dtype=origin.int64), origin.zeros(items, dtype=origin.int64)
    cupy.cuda.runtime.deviceSynchronize()
    win = MPI.Win.Create(memory, 8, MPI.INFO_NULL, world)
    columns = MPI.INT64_T.Create_vector(items // 2, 1, 2).Commit()

    def number(value):
        it = origin.full(1, value, dtype=origin.int64)
        cupy.cuda.runtime.deviceSynchronize()
        return it

    def locked(act):
        win.Lock(other)
        try:
            act()
        finally:
            win.Unlock(other)
            world.Barrier()

    def get():
        win.Fence()
        win.Get(take, other)
        win.Fence()
        return bool((take == origin.arange(items, dtype=origin.int64)).all())

    def put():
        win.Fence()
        win.Put([give, 1, columns], other, [0, 1, columns])
        win.Fence()
        cupy.cuda.runtime.deviceSynchronize()
        want = xp.arange(items, dtype=xp.int64)
        want[::2] = 5 + other
        return bool((memory == want).all())

    def accumulate():
        locked(lambda: win.Accumulate([give, items, MPI.INT64_T], other, op=MPI.SUM))
        want = xp.arange(items, dtype=xp.int64)
        want[::2] = 5 + other
        return bool((memory == want + 5 + other).all())

    def fetch():
        one, old = number(1), number(0)
        locked(lambda: win.Fetch_and_op(one, old, other, 1, MPI.SUM))
        return int(old[0]) == 1 + 5 + rank and int(memory[1]) == 2 + 5 + other

    def swap():
        one, was, old = number(9), number(2 + 5 + rank), number(0)
        locked(lambda: win.Compare_and_swap(one, was, old, other, 1))
        return int(memory[1]) == 9

    # What is compared and swapped has to lie in memory of the host at the origin.
    for act in (get, put, accumulate, fetch) + (() if origin_device else (swap,)):
        attempt(f"{act.__name__} {name}", act)
        # Others must not write yet what is being compared.
        world.Barrier()
    win.Free()
    columns.Free()


def packing(items):
    for name, datatype, _ in layouts(items):
        if datatype != MPI.DOUBLE:
            datatype.Commit()

        def case():
            out, into = new(items, True, 1), new(items, True, 1 << 40)
            cupy.cuda.runtime.deviceSynchronize()
            before = host_bytes(into).copy()
            # As many instances as the arrays are long.
            count = out.nbytes // datatype.Get_extent()[1]
            packed = numpy.zeros(datatype.Get_size() * count, numpy.uint8)
            datatype.Pack(out, packed, 0, world)
            datatype.Unpack(packed, 0, into, world)
            return bool((host_bytes(into) == expected(before, host_bytes(out), datatype, count, items)).all())

        attempt(f"pack {name} {items}", case)


for items in (64, 4096, 1 << 17):
    messages(items)
    packing(items)
messages(1 << 21)
for items in (24, 1024, 1 << 18, 1 << 21):
    for device in (True, False):
        collectives(items, device)
for items in (16, 4096, 1 << 18):
    for device in (True, False):
        for origin in (True, False):
            windows(items, device, origin)
sums = world.gather((passed, failed))
if rank == 0:
    print(f"{sum(it[0] for it in sums)} passed, {sum(len(it[1]) for it in sums)} failed, on {size} ranks, "
          f"{cupy.cuda.runtime.getDeviceCount()} devices")
sys.exit(1 if failed else 0)
