"""Compiles CUDA C++ with NVRTC and ptxas. Run by `cargo xtask kernels`.

compile.py WHEELS SOURCE INCLUDE IMAGE REPORT SM... PTX

WHEELS is the folder that NVIDIA's wheels were installed into. IMAGE becomes a fat binary with machine code
for every SM (as 90, or 90:80 if it is made of PTX for 80) and PTX for what comes later (as 80). What ptxas says of registers and spills goes to
REPORT, a line a kernel. A kernel that spills is an error. Sources whose name ends in `_linked` or `_tasks`, or is `lanes`,
become relocatable code, to be linked with users': of its functions the report has no registers, which the linker decides.
With PTX alone IMAGE becomes that text.
"""

import concurrent.futures
import ctypes
import os
import re
import subprocess
import sys
import tempfile


def main():
    wheels, source, include, image, report, *targets = sys.argv[1:]
    relocatable = re.search(r"(_linked|_tasks|/lanes)\.cu$", source) is not None
    nvrtc = load(wheels)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        # Names, not paths: they get into the image.
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            targets = [target.split(":") for target in targets]
            archs = sorted({target[-1] for target in targets})
            texts = dict(zip(archs, pool.map(lambda a: compile_ptx(nvrtc, source, include, a, relocatable), archs)))
            for arch, text in texts.items():
                with open(os.path.join(folder, f"compute_{arch}.ptx"), "wb") as file:
                    file.write(text)
            reports = list(pool.map(lambda t: assemble(wheels, folder, t[0], t[-1], relocatable), targets[:-1]))
        parts = []
        for (sm, *_), report_of in zip(targets[:-1], reports):
            lines += functions(sm, report_of) if relocatable else summary(sm, report_of)
            parts.append(f"--image3=kind=elf,sm={sm},file=sm_{sm}.cubin")
        [later] = targets[-1]
        parts.append(f"--image3=kind=ptx,sm={later},file=compute_{later}.ptx")
        kind = ["--device-c"] if relocatable else []
        run(wheels, "fatbinary", ["--create=image", "-64", "--compress-all", *kind, *parts], folder)
        made_of = "image" if reports else f"compute_{later}.ptx"
        with open(os.path.join(folder, made_of), "rb") as made, open(image, "wb") as file:
            file.write(made.read())
    with open(report, "w") as file:
        file.write("sm kernel registers spilled-bytes stack-bytes shared-bytes\n")
        file.writelines(lines)
    # Functions of relocatable code save registers for their callers.
    spilled = [line for line in lines if line.split()[2] != "-" and line.split()[3:5] != ["0", "0"]]
    if spilled:
        sys.exit("kernels that spill:\n" + "".join(spilled))


def assemble(wheels, folder, sm, arch, relocatable):
    arguments = ["-v", f"-arch=sm_{sm}", "-o", f"sm_{sm}.cubin", f"compute_{arch}.ptx"]
    if relocatable:
        arguments.insert(0, "-c")
    return run(wheels, "ptxas", arguments, folder)


def run(wheels, program, arguments, folder):
    program = os.path.join(wheels, "bin", program)
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program}: {done.stdout.decode()}{done.stderr.decode()}")
    return done.stderr.decode()


def load(wheels):
    folder = os.path.join(wheels, "lib")
    names = sorted(os.listdir(folder))
    # The wheel's NVRTC finds its builtins only if they are loaded already.
    for name in names:
        if name.startswith("libnvrtc-builtins.so"):
            ctypes.CDLL(os.path.join(folder, name), mode=ctypes.RTLD_GLOBAL)
    library = next(n for n in names if re.fullmatch(r"libnvrtc\.so\.\d+", n))
    return ctypes.CDLL(os.path.join(folder, library))


def compile_ptx(nvrtc, source, include, arch, relocatable):
    with open(source, "rb") as file:
        text = file.read()
    program = ctypes.c_void_p()
    name = os.path.basename(source).encode()
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None))
    options = [f"--gpu-architecture=compute_{arch}", f"--include-path={include}", "--std=c++17",
               "--restrict", "--device-as-default-execution-space"]
    if relocatable:
        options.append("--relocatable-device-code=true")
    array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    status = nvrtc.nvrtcCompileProgram(program, len(options), array)
    if status != 0:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(f"nvrtc compute_{arch}:\n{log.value.decode()}")
    size = ctypes.c_size_t()
    check(nvrtc, nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc, nvrtc.nvrtcGetPTX(program, ptx))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx.value


def check(nvrtc, status):
    if status != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"nvrtc: {nvrtc.nvrtcGetErrorString(status).decode()}")


def summary(sm, text):
    """One line a kernel, sorted, of ptxas's report."""
    lines = []
    pattern = (
        r"Compiling entry function '(\w+)'.*?\n"
        r".*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
        r".*?Used (\d+) registers([^\n]*)"
    )
    for match in re.finditer(pattern, text, re.DOTALL):
        name, stack, stores, loads, registers, rest = match.groups()
        spilled = int(stores) + int(loads)
        shared = next(iter(re.findall(r"(\d+) bytes smem", rest)), "0")
        lines.append(f"{sm} {name} {registers} {spilled} {stack} {shared}\n")
    if not lines:
        sys.exit("ptxas reported no kernel: has its output changed?")
    return sorted(lines)


def functions(sm, text):
    """One line a function of relocatable code, sorted; registers are not known."""
    pattern = r"Function properties for (\w+)\n *(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    lines = []
    for name, stack, stores, loads in re.findall(pattern, text):
        # Static ones have names that say in which file.
        if name.startswith("_Z"):
            continue
        # Of a whole entry, more is said.
        entry = re.search(rf"Compiling entry function '{name}'.*?Used (\d+) registers(.*?)\n", text, re.DOTALL)
        shared = re.search(r"(\d+) bytes smem", entry[2]) if entry else None
        lines.append(f"{sm} {name} {entry[1] if entry else '-'} {int(stores) + int(loads)} {stack} {shared[1] if shared else 0}\n")
    return sorted(lines)


main()
