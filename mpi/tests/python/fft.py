"""The transposes of mpi4py-fft's parallel transform, of CuPy arrays, timed.

    mpiexec -n 2 python fft.py PENCIL_PY [SIDE]

PENCIL_PY is mpi4py_fft/pencil.py of mpi4py-fft's source package: Python alone. A cube of SIDE³ complex numbers is cut
into planes; the transform goes along two axes, is redistributed by one `Alltoallw` of subarrays, and goes along the
third. The result is compared with the transform by one process, the inverse with what there was. Prints JSON: bytes
that each rank gives to others in an exchange, seconds and GB/s of exchanges there and back (medians), and of copies on the
device of as many bytes as a rank has.
"""

import importlib.util
import json
import statistics
import sys
import time

import cupy
from mpi4py import MPI

spec = importlib.util.spec_from_file_location("pencil", sys.argv[1])
pencil = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pencil)
side = int(sys.argv[2]) if len(sys.argv) > 2 else 512
world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()
devices = cupy.cuda.runtime.getDeviceCount()
cupy.cuda.Device(rank % devices).use()
wait = cupy.cuda.runtime.deviceSynchronize

planes = pencil.Pencil(pencil.Subcomm(world, [0, 1, 1]), (side, side, side), axis=1)
lines = planes.pencil(0)
transfer = planes.transfer(lines, "D")
part = slice(planes.substart[0], planes.substart[0] + planes.subshape[0])


def whole():
    generator = cupy.random.default_rng(7)
    return generator.random((side, side, side)) + 1j * generator.random((side, side, side))


first = whole()[part].copy()
# Transforms give arrays of other strides.
out, into = cupy.ascontiguousarray(cupy.fft.fftn(first, axes=(1, 2))), cupy.zeros(lines.subshape, "D")
wait()


def seconds(act, times=15):
    took = []
    for _ in range(times):
        wait()
        world.Barrier()
        begun = time.perf_counter()
        act()
        took.append(world.allreduce(time.perf_counter() - begun, MPI.MAX))
    return statistics.median(took[2:]), min(took[2:]), max(took[2:])


begun = time.perf_counter()
transfer.forward(out, into)
first_there = time.perf_counter() - begun
there = seconds(lambda: transfer.forward(out, into))
result = cupy.fft.fft(into, axis=0)
mine = tuple(slice(a, a + n) for a, n in zip(lines.substart, lines.subshape))
want = cupy.fft.fftn(whole())[mine]
wrong = float(abs(result - want).max() / abs(want).max())
del want
back_in = cupy.ascontiguousarray(cupy.fft.ifft(result, axis=0))
cells = cupy.zeros(planes.subshape, "D")
wait()
back = seconds(lambda: transfer.backward(back_in, cells))
off = float(abs(cupy.fft.ifftn(cells, axes=(1, 2)) - first).max())
target = cupy.empty_like(out)


def copy():
    cupy.copyto(target, out)
    wait()


copied = seconds(copy)
bytes_own = out.nbytes
sent = bytes_own * (ranks - 1) // ranks
if rank == 0:
    print(json.dumps({
        "library": MPI.Get_library_version().splitlines()[0], "ranks": ranks, "devices": devices, "side": side,
        "bytes_of_rank": bytes_own, "bytes_to_others": sent, "first_s": first_there,
        "there_s": there, "back_s": back, "copy_s": copied,
        "there_gb_s_of_rank": bytes_own / there[0] / 1e9, "there_gb_s_to_others": sent / there[0] / 1e9,
        "back_gb_s_of_rank": bytes_own / back[0] / 1e9, "copy_gb_s": bytes_own / copied[0] / 1e9,
        "relative_error": wrong, "inverse_error": off}))
sys.exit(0 if wrong < 1e-12 and off < 1e-12 else 1)
