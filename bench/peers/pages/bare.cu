// What the hardware allows for pages at random indices: bare kernels that read both lists of indices from device
// memory, each beside the driver's copy of as many contiguous bytes. README.md says what the lines mean.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 -o bare bare.cu && ./bare [--pages N] [--samples N] [--only PART] [--no-bulk]
//
// PART is one of gpu (one GPU), two (two GPUs), host, batch. Every kind of kernel is verified, then tried a few times;
// the fastest of each way is measured. Times are the host's clock around launch and wait. Units: bytes, seconds.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#define NEED(call) \
    do { \
        cudaError_t error = (call); \
        if (error != cudaSuccess) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            exit(1); \
        } \
    } while (0)

using u32 = uint32_t;
using u64 = uint64_t;

constexpr u64 GAP = 0xa5a5a5a5a5a5a5a5ull;

// ---- Kernels -------------------------------------------------------------------------------------------------------

// Copies `total` words, U in flight in each thread. Page i is `WORDS` words (if 0: `1 << shift`), the page `from[i]` of
// `source` and the page `to[i]` of `target`; a list that is null stands for 0, 1, 2, …
template <typename W, u32 WORDS, int U>
__global__ void flat(W *target, const W *source, const u32 *to, const u32 *from, u32 total, int shift) {
    const u32 first = blockIdx.x * (blockDim.x * U) + threadIdx.x;
    u32 page[U], at[U];
    W value[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        const u32 word = first + u * blockDim.x;
        if constexpr (WORDS > 0) {
            page[u] = word / WORDS, at[u] = word % WORDS;
        } else {
            page[u] = word >> shift, at[u] = word & ((1u << shift) - 1);
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (first + u * blockDim.x >= total) continue;
        const u64 start = from ? from[page[u]] : page[u];
        value[u] = source[(WORDS ? start * WORDS : start << shift) + at[u]];
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (first + u * blockDim.x >= total) continue;
        const u64 start = to ? to[page[u]] : page[u];
        target[(WORDS ? start * WORDS : start << shift) + at[u]] = value[u];
    }
}

__device__ u32 shared_address(const void *pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// Starts a copy into shared memory, which `barrier` counts.
__device__ void bulk_load(void *shared, const void *global, u32 bytes, u64 *barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Starts a copy out of shared memory, as a group of its own.
__device__ void bulk_store(void *global, const void *shared, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ bool bulk_arrived(u64 *barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return done;
}

constexpr int STAGES = 4, AHEAD = 2;

// The same by bulk copies: a warp a block, whose first lane drives a ring of stages of `unit` bytes in shared memory;
// loads run AHEAD of stores. The warp reads the indices of 32 units at once, and those of the next 32 meanwhile.
__global__ void bulk(char *target, const char *source, const u32 *to, const u32 *from, u32 units, u32 unit,
                     u32 units_per_page) {
    extern __shared__ __align__(128) char ring[];
    __shared__ u64 barriers[STAGES];
    const u32 lane = threadIdx.x;
    if (lane == 0) {
        for (int stage = 0; stage < STAGES; stage++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barriers[stage])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    const u32 mine = blockIdx.x < units ? (units - blockIdx.x - 1) / gridDim.x + 1 : 0;
    // Offsets of the units of this block that a lane looked up.
    u64 source_now = 0, target_now = 0, source_next = 0, target_next = 0;
    auto look_up = [&](u32 first) {
        const u32 k = first + lane;
        if (k >= mine) return;
        const u32 which = blockIdx.x + k * gridDim.x, page = which / units_per_page;
        const u64 within = u64(which % units_per_page) * unit, bytes = u64(unit) * units_per_page;
        source_next = from[page] * bytes + within;
        target_next = to[page] * bytes + within;
    };
    u64 stored_to[STAGES];
    look_up(0);
    // Starts loading unit k; every lane calls it, with one k after the other.
    auto load = [&](u32 k, int stage) {
        if (k % 32 == 0) {
            source_now = source_next, target_now = target_next;
            look_up(k + 32);
        }
        const u64 at = __shfl_sync(~0u, source_now, k % 32);
        stored_to[stage] = __shfl_sync(~0u, target_now, k % 32);
        if (lane == 0) bulk_load(ring + stage * unit, source + at, unit, &barriers[stage]);
    };
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (k < mine) load(k, k);
    for (u32 round = 0; round * STAGES < mine; round++) {
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            const u32 k = round * STAGES + stage;
            if (k >= mine) break;
            if (lane == 0) {
                while (!bulk_arrived(&barriers[stage], round & 1)) {
                }
                bulk_store(target + stored_to[stage], ring + stage * unit, unit);
                // Units up to k + AHEAD - STAGES have left their stages.
                asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(STAGES - AHEAD) : "memory");
            }
            __syncwarp();
            if (k + AHEAD < mine) load(k + AHEAD, (stage + AHEAD) % STAGES);
        }
    }
    if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ u64 pattern(u64 word) { return (word + 1) * 0x9e3779b97f4a7c15ull; }

__global__ void fill(u64 *memory, u64 words, bool with_gap) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < words; i += u64(gridDim.x) * blockDim.x)
        memory[i] = with_gap ? GAP : pattern(i);
}

// Counts words of the pages that are wrong, and words that are not as `fill` left them.
__global__ void check(const u64 *target, u64 words, const u32 *to, const u32 *from, u64 pages, u32 page_words,
                      unsigned long long *wrong, unsigned long long *written) {
    const u64 first = blockIdx.x * u64(blockDim.x) + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
    unsigned long long bad = 0, changed = 0;
    for (u64 i = first; i < pages * page_words; i += step) {
        const u64 page = i / page_words, at = i % page_words;
        bad += target[u64(to[page]) * page_words + at] != pattern(u64(from[page]) * page_words + at);
    }
    for (u64 i = first; i < words; i += step) changed += target[i] != GAP;
    if (bad) atomicAdd(wrong, bad);
    if (changed) atomicAdd(written, changed);
}

// ---- Memory and lists ----------------------------------------------------------------------------------------------

struct Options {
    u64 pages = 120000;
    int samples = 25;
    std::string only;
    bool bulk = true;
};
static Options options;

// The same numbers in every run.
static u64 state = 43;
static u64 draw(u64 below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return ((state >> 32) * below) >> 32;
}

// `pages` different indices below `pool`.
static std::vector<u32> drawn(u64 pages, u64 pool, bool shuffled) {
    std::vector<u32> all(pool);
    std::iota(all.begin(), all.end(), 0u);
    for (u64 i = 0; i < pages; i++) std::swap(all[i], all[i + draw(pool - i)]);
    all.resize(pages);
    if (!shuffled) std::sort(all.begin(), all.end());
    return all;
}

static u32 *upload(int device, const std::vector<u32> &list) {
    u32 *memory;
    NEED(cudaSetDevice(device));
    NEED(cudaMalloc(&memory, list.size() * sizeof(u32)));
    NEED(cudaMemcpy(memory, list.data(), list.size() * sizeof(u32), cudaMemcpyHostToDevice));
    return memory;
}

static int gpus = 0;
static cudaStream_t streams[2];
static cudaEvent_t slice_ends[8];
static char *source_at[2], *target_at[2], *staging, *host_source, *host_target;
static u64 pool_bytes, host_bytes, staging_bytes;

// Pools that hold twice the largest pages; smaller where memory is short.
static void allocate() {
    NEED(cudaGetDeviceCount(&gpus));
    gpus = std::min(gpus, 2);
    pool_bytes = 2 * options.pages * 65536;
    for (int device = 0; device < gpus; device++) {
        size_t free_bytes, total;
        NEED(cudaSetDevice(device));
        NEED(cudaMemGetInfo(&free_bytes, &total));
        if (pool_bytes > free_bytes * 2 / 5) pool_bytes = free_bytes * 2 / 5 / 65536 * 65536;
    }
    staging_bytes = 512ull << 20;
    for (int device = 0; device < gpus; device++) {
        NEED(cudaSetDevice(device));
        NEED(cudaStreamCreateWithFlags(&streams[device], cudaStreamNonBlocking));
        NEED(cudaMalloc(&source_at[device], pool_bytes));
        NEED(cudaMalloc(&target_at[device], pool_bytes));
        if (gpus == 2) NEED(cudaDeviceEnablePeerAccess(1 - device, 0));
        if (device == 1) NEED(cudaMalloc(&staging, staging_bytes));
    }
    NEED(cudaSetDevice(0));
    for (cudaEvent_t &end : slice_ends) NEED(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    host_bytes = std::min<u64>(pool_bytes, 2ull << 30);
}

static void filled(void *memory, u64 bytes, bool with_gap, int device) {
    NEED(cudaSetDevice(device));
    fill<<<1056, 256, 0, streams[device]>>>(static_cast<u64 *>(memory), bytes / 8, with_gap);
    NEED(cudaGetLastError());
    NEED(cudaStreamSynchronize(streams[device]));
}

// ---- Measuring -----------------------------------------------------------------------------------------------------

// One way to do a piece of work: `start` enqueues it, and the wait is for the streams of all GPUs that it uses.
struct Way {
    std::string by;
    std::function<void()> start;
    std::vector<int> devices;
};

static double timed(const Way &way) {
    NEED(cudaSetDevice(way.devices[0]));
    const auto begin = std::chrono::steady_clock::now();
    way.start();
    for (int device : way.devices) NEED(cudaStreamSynchronize(streams[device]));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

static void measured(const std::string &work, const Way &way, u64 page_bytes, u64 pages) {
    std::vector<double> times;
    timed(way);
    for (int i = 0; i < options.samples; i++) times.push_back(timed(way));
    std::sort(times.begin(), times.end());
    auto at = [&](double part) { return times[size_t(part * (times.size() - 1) + 0.5)]; };
    printf(
        "{\"work\":\"%s\",\"by\":\"%s\",\"page_bytes\":%llu,\"pages\":%llu,\"median_us\":%.2f,\"p10\":%.2f,"
        "\"p90\":%.2f,\"gb_s\":%.1f}\n",
        work.c_str(), way.by.c_str(), (unsigned long long)page_bytes, (unsigned long long)pages, 1e6 * at(0.5),
        1e6 * at(0.1), 1e6 * at(0.9), page_bytes * pages / at(0.5) / 1e9);
    fflush(stdout);
}

// Pages of a piece of work, and its lists on each GPU.
struct Lists {
    u64 page_bytes, pages;
    u32 *to[2], *from[2];

    u64 pool() const { return 2 * pages * page_bytes; }
};

static Lists lists(u64 page_bytes, u64 pages, bool shuffled) {
    Lists made = {page_bytes, pages, {}, {}};
    const auto from = drawn(pages, 2 * pages, shuffled), to = drawn(pages, 2 * pages, shuffled);
    for (int device = 0; device < gpus; device++)
        made.to[device] = upload(device, to), made.from[device] = upload(device, from);
    return made;
}

static void drop(const Lists &made) {
    for (int device = 0; device < gpus; device++) {
        NEED(cudaFree(made.to[device]));
        NEED(cudaFree(made.from[device]));
    }
}

template <typename W, u32 WORDS, int U>
static void launch_flat(void *target, const void *source, const u32 *to, const u32 *from, u64 bytes, int shift,
                        int threads, cudaStream_t stream) {
    const u64 total = bytes / sizeof(W), each = u64(threads) * U;
    flat<W, WORDS, U><<<unsigned((total + each - 1) / each), threads, 0, stream>>>(
        static_cast<W *>(target), static_cast<const W *>(source), to, from, u32(total), shift);
    NEED(cudaGetLastError());
}

template <int U>
static void start_flat(void *target, const void *source, const u32 *to, const u32 *from, u64 page_bytes, u64 pages,
                       int threads, cudaStream_t stream) {
    const u64 bytes = page_bytes * pages;
    int shift = 0;
    while ((16ull << shift) < page_bytes) shift++;
    if (page_bytes == 8)
        launch_flat<u64, 1, U>(target, source, to, from, bytes, 0, threads, stream);
    else if (page_bytes == 24)
        launch_flat<u64, 3, U>(target, source, to, from, bytes, 0, threads, stream);
    else if (page_bytes == 576)
        launch_flat<uint4, 36, U>(target, source, to, from, bytes, 0, threads, stream);
    else if ((16ull << shift) == page_bytes)
        launch_flat<uint4, 0, U>(target, source, to, from, bytes, shift, threads, stream);
    else
        fprintf(stderr, "no kernel for pages of %llu bytes\n", (unsigned long long)page_bytes), exit(1);
}

static void flat_ways(std::vector<Way> &ways, const std::string &label, char *target, const char *source, Lists l,
                      int gpu) {
    auto add = [&](auto unroll, int threads) {
        constexpr int U = decltype(unroll)::value;
        auto start = [=] {
            start_flat<U>(target, source, l.to[gpu], l.from[gpu], l.page_bytes, l.pages, threads, streams[gpu]);
        };
        ways.push_back({label + ", " + std::to_string(U) + " in flight x " + std::to_string(threads), start, {gpu}});
    };
    for (int threads : {256, 512}) {
        add(std::integral_constant<int, 1>{}, threads);
        add(std::integral_constant<int, 2>{}, threads);
        add(std::integral_constant<int, 4>{}, threads);
        add(std::integral_constant<int, 8>{}, threads);
    }
}

static void bulk_ways(std::vector<Way> &ways, const std::string &label, char *target, const char *source, Lists l,
                      int gpu) {
    if (!options.bulk || l.page_bytes % 16 != 0) return;
    for (u32 most : {4096u, 8192u}) {
        const u32 unit = u32(std::min<u64>(l.page_bytes, most)), per_page = u32(l.page_bytes / unit);
        if (unit < most && most > 4096) continue;
        const u32 shared = STAGES * unit, blocks = 132 * std::min(16u, (200u << 10) / shared);
        NEED(cudaSetDevice(gpu));
        NEED(cudaFuncSetAttribute(bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
        auto start = [=] {
            bulk<<<blocks, 32, shared, streams[gpu]>>>(target, source, l.to[gpu], l.from[gpu], u32(l.pages * per_page),
                                                       unit, per_page);
            NEED(cudaGetLastError());
        };
        ways.push_back({label + ", bulk copies of " + std::to_string(unit), start, {gpu}});
    }
}

// Blocks that are shorter than packets of the link: gathered into contiguous memory of the other GPU and scattered
// there, in slices.
static void staged_ways(std::vector<Way> &ways, Lists l) {
    if (l.page_bytes > 576 || l.page_bytes * l.pages > staging_bytes) return;
    for (u64 slices : {1, 4, 8}) {
        auto start = [=] {
            for (u64 i = 0; i < slices; i++) {
                const u64 first = l.pages * i / slices, pages = l.pages * (i + 1) / slices - first;
                char *stage = staging + first * l.page_bytes;
                NEED(cudaSetDevice(0));
                start_flat<4>(stage, source_at[0], nullptr, l.from[0] + first, l.page_bytes, pages, 256, streams[0]);
                NEED(cudaEventRecord(slice_ends[i], streams[0]));
                NEED(cudaSetDevice(1));
                NEED(cudaStreamWaitEvent(streams[1], slice_ends[i], 0));
                start_flat<4>(target_at[1], stage, l.to[1] + first, nullptr, l.page_bytes, pages, 256, streams[1]);
            }
        };
        ways.push_back({"gathered, " + std::to_string(slices) + " slices", start, {0, 1}});
    }
}

// Verifies each way, tries each, and measures the fastest.
static void fastest(const std::string &work, const std::vector<Way> &ways, Lists l, char *target, int target_gpu) {
    unsigned long long *counts, found[2];
    NEED(cudaSetDevice(target_gpu));
    NEED(cudaMalloc(&counts, sizeof found));
    const Way *best = nullptr;
    double best_time = 0;
    for (const Way &way : ways) {
        filled(target, l.pool(), true, target_gpu);
        timed(way);
        NEED(cudaSetDevice(target_gpu));
        NEED(cudaMemsetAsync(counts, 0, sizeof found, streams[target_gpu]));
        check<<<1056, 256, 0, streams[target_gpu]>>>(reinterpret_cast<u64 *>(target), l.pool() / 8, l.to[target_gpu],
                                                     l.from[target_gpu], l.pages, u32(l.page_bytes / 8), &counts[0],
                                                     &counts[1]);
        NEED(cudaGetLastError());
        NEED(cudaMemcpyAsync(found, counts, sizeof found, cudaMemcpyDeviceToHost, streams[target_gpu]));
        NEED(cudaStreamSynchronize(streams[target_gpu]));
        if (found[0] != 0 || found[1] != l.page_bytes / 8 * l.pages) {
            fprintf(stderr, "%s by %s, pages of %llu: %llu words wrong, %llu written\n", work.c_str(), way.by.c_str(),
                    (unsigned long long)l.page_bytes, found[0], found[1]);
            continue;
        }
        double time = timed(way);
        if (!best || time < 2 * best_time)
            for (int i = 0; i < 3; i++) time = std::min(time, timed(way));
        if (!best || time < best_time) best = &way, best_time = time;
    }
    NEED(cudaFree(counts));
    if (best) measured(work, *best, l.page_bytes, l.pages);
}

// ---- Work ----------------------------------------------------------------------------------------------------------

struct Size {
    u64 page_bytes, pages;
    bool ascending;
};

static std::vector<Size> sizes(u64 most_bytes) {
    std::vector<Size> list;
    for (u64 page_bytes : {4096, 8192, 32768, 65536})
        list.push_back({page_bytes, std::min(options.pages, most_bytes / page_bytes), false});
    const u64 blocks[3][2] = {{576, 400000000 / 576}, {24, 100000000 / 24}, {8, 100000000 / 8}};
    for (auto &block : blocks)
        for (bool ascending : {true, false})
            list.push_back({block[0], std::min<u64>(block[1], most_bytes / block[0]), ascending});
    return list;
}

static void copied(const std::string &work, char *target, const char *source, Lists l, int to_gpu, int from_gpu) {
    const u64 bytes = l.page_bytes * l.pages;
    auto start = [=] {
        if (to_gpu >= 0 && from_gpu >= 0 && to_gpu != from_gpu)
            NEED(cudaMemcpyPeerAsync(target, to_gpu, source, from_gpu, bytes, streams[0]));
        else
            NEED(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, streams[0]));
    };
    measured(work + ", contiguous", {"the driver's copy", start, {0}}, l.page_bytes, l.pages);
}

static void gpu_work(bool two) {
    const std::string place = two ? "two GPUs" : "one GPU";
    char *source = source_at[0], *target = target_at[two];
    filled(source, pool_bytes, false, 0);
    for (const Size &size : sizes(pool_bytes / 2)) {
        const Lists l = lists(size.page_bytes, size.pages, !size.ascending);
        const std::string work = place + (size.ascending ? ", ascending" : ", shuffled");
        std::vector<Way> writes, reads, staged;
        flat_ways(writes, two ? "writes" : "kernel", target, source, l, 0);
        bulk_ways(writes, two ? "writes" : "kernel", target, source, l, 0);
        fastest(work, writes, l, target, two);
        if (two) {
            flat_ways(reads, "reads", target, source, l, 1);
            bulk_ways(reads, "reads", target, source, l, 1);
            fastest(work, reads, l, target, 1);
            staged_ways(staged, l);
            if (!staged.empty()) fastest(work, staged, l, target, 1);
        }
        if (!size.ascending) copied(place, target, source, l, two, 0);
        drop(l);
    }
}

static void host_work() {
    NEED(cudaSetDevice(0));
    NEED(cudaHostAlloc(&host_source, host_bytes, cudaHostAllocPortable));
    NEED(cudaHostAlloc(&host_target, host_bytes, cudaHostAllocPortable));
    filled(host_source, host_bytes, false, 0);
    filled(source_at[0], host_bytes, false, 0);
    for (const Size &size : sizes(host_bytes / 2)) {
        const Lists l = lists(size.page_bytes, size.pages, !size.ascending);
        const std::string order = size.ascending ? ", ascending" : ", shuffled";
        std::vector<Way> out, in;
        flat_ways(out, "writes", host_target, source_at[0], l, 0);
        fastest("GPU to host" + order, out, l, host_target, 0);
        flat_ways(in, "reads", target_at[0], host_source, l, 0);
        fastest("host to GPU" + order, in, l, target_at[0], 0);
        if (!size.ascending) {
            copied("GPU to host", host_target, source_at[0], l, -1, 0);
            copied("host to GPU", target_at[0], host_source, l, 0, -1);
        }
        drop(l);
    }
}

// What a user without kernels does: a batch of copies, and a loop of them, both with the building of their lists.
static void batch_work() {
    const u64 page_bytes = 8192;
    filled(source_at[0], pool_bytes, false, 0);
    for (u64 pages : {u64(16384), options.pages}) {
        pages = std::min(pages, pool_bytes / 2 / page_bytes);
        const auto from = drawn(pages, 2 * pages, true), to = drawn(pages, 2 * pages, true);
        Lists l = {page_bytes, pages, {}, {}};
        for (int gpu = 0; gpu < 2; gpu++) l.to[gpu] = upload(gpu, to), l.from[gpu] = upload(gpu, from);
        std::vector<void *> targets(pages), sources(pages);
        std::vector<size_t> lens(pages, page_bytes);
        auto build = [&] {
            for (u64 i = 0; i < pages; i++) {
                targets[i] = target_at[1] + to[i] * page_bytes;
                sources[i] = source_at[0] + from[i] * page_bytes;
            }
        };
        auto loop = [&] {
            for (u64 i = 0; i < pages; i++)
                NEED(cudaMemcpyAsync(target_at[1] + to[i] * page_bytes, source_at[0] + from[i] * page_bytes, page_bytes,
                                     cudaMemcpyDeviceToDevice, streams[0]));
        };
        if (pages <= 16384)
            fastest("two GPUs, shuffled", {{"a loop of cudaMemcpyAsync", loop, {0}}}, l, target_at[1], 1);
#if CUDART_VERSION >= 12080
        auto batch = [&] {
            cudaMemcpyAttributes attributes = {};
            attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
            size_t first = 0;
#if CUDART_VERSION >= 13000
            NEED(cudaMemcpyBatchAsync((void *const *)targets.data(), (const void *const *)sources.data(), lens.data(),
                                      pages, &attributes, &first, 1, streams[0]));
#else
            size_t failed = 0;
            NEED(cudaMemcpyBatchAsync(targets.data(), sources.data(), lens.data(), pages, &attributes, &first, 1,
                                      &failed, streams[0]));
#endif
        };
        auto anew = [&] { build(), batch(); };
        fastest("two GPUs, shuffled, new list", {{"cudaMemcpyBatchAsync", anew, {0}}}, l, target_at[1], 1);
        fastest("two GPUs, shuffled, same list", {{"cudaMemcpyBatchAsync", batch, {0}}}, l, target_at[1], 1);
#endif
        drop(l);
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        const char *next = i + 1 < argc ? argv[i + 1] : nullptr;
        if (word == "--no-bulk") {
            options.bulk = false;
            continue;
        }
        if (word == "--pages" && next)
            options.pages = strtoull(next, nullptr, 10);
        else if (word == "--samples" && next)
            options.samples = atoi(next);
        else if (word == "--only" && next)
            options.only = next;
        else
            next = nullptr;
        if (!next || options.pages < 1 || options.pages > 120000 || options.samples < 1) {
            fprintf(stderr, "usage: bare [--pages 1..120000] [--samples N] [--only gpu|two|host|batch] [--no-bulk]\n");
            return 2;
        }
        i++;
    }
    allocate();
    auto wanted = [](const char *part) { return options.only.empty() || options.only == part; };
    if (wanted("gpu")) gpu_work(false);
    if (gpus < 2) fprintf(stderr, "one GPU only: nothing between two is measured\n");
    if (gpus == 2 && wanted("two")) gpu_work(true);
    if (gpus == 2 && wanted("batch")) batch_work();
    if (wanted("host")) host_work();
    return 0;
}
