//! The numbers of the cost model, as data: measured by a tuner or taken from the defaults here.

use crate::protocol::Protocol;
use std::time::Duration;

/// What operations cost on this machine. Times in nanoseconds, bandwidths in bytes per microsecond
/// (= MB/s of payload), sizes in bytes.
///
/// A message of which neither buffer lies in a device's memory is predicted by the numbers of the host; any other by
/// those of devices, some of which say what the host's processor does for such a message. Both use `layout_mb_s`, and
/// the lengths of eager messages and of the pipeline's fragments.
///
/// The defaults of the host lie between what an AMD EPYC (Zen 3, 32 MiB of last-level cache) and an Intel Xeon
/// (Sapphire Rapids, 300 MiB) measure, and choose well on both; those of devices were measured between two H200s. Only
/// their ratios are meant to carry over to other machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// Longest message that may be eager, over whatever link. The transport's own limit also holds.
    pub eager_bytes_max: u64,
    /// Up to this length eager is certain to win, and nothing else is considered.
    pub eager_bytes_sure: u64,
    /// The cost of a rendezvous to both ends besides the latencies of its messages.
    pub rendezvous_ns: f64,
    /// Two copies through a ring whose fragments stay in cache. A slower rail's own bandwidth
    /// replaces it.
    pub pipeline_mb_s: f64,
    /// One copy in user space, out of memory that both ends map.
    pub mapped_mb_s: f64,
    /// Mapping a peer's memory: a lookup, as a rule.
    pub map_ns: f64,
    /// One copy by the kernel (`process_vm_readv`): its bandwidth for pages of 4 KiB, 270 ns each. The rail's own
    /// estimate replaces it if that is lower.
    pub single_copy_mb_s: f64,
    /// The cost of one run of bytes to the host's engine, in a loop over runs.
    pub block_ns: f64,
    /// Bandwidth of fetching and decoding a flattened layout.
    pub layout_mb_s: f64,
    /// Fragment size of the pipeline within a host. The transport's own limit also holds.
    pub fragment_bytes: u32,
    /// The same over a network.
    pub network_fragment_bytes: u32,
    /// Fragments of one message in flight at once, if engines work asynchronously.
    pub depth: u32,
    /// Longest fragments of the pipeline out of a device's memory: each costs launches. The transport's own limit also
    /// holds. Their actual length is derived from the other numbers.
    pub device_fragment_bytes: u32,
    /// Shortest fragments that such a message is cut into, if it is longer. If this equals `device_fragment_bytes`, all
    /// have that length.
    pub device_fragment_least_bytes: u32,
    /// Packets of the page-locked memory that long messages of a device pass on their way over a network: one launch
    /// packs, or unpacks, so much. They are as long as a fragment at least. Each end has its own. A message has four at
    /// a time, and two messages' are page-locked when a device is attached in a job of several hosts.
    pub device_packet_bytes: u32,
    /// The same, if less, where the network's adapter or the processors of this process are in another NUMA node than the
    /// device. The default is what `figures acc3` finds for channels that it slows down.
    pub device_far_packet_bytes: u32,
    /// Bytes that one call of single copy moves at most, so that other messages get their turn.
    pub single_copy_batch_bytes: u64,
    /// Longest fragments of the staged protocols, which move device memory. Their actual length is derived from the
    /// other numbers.
    pub staged_fragment_bytes: u32,
    /// Shortest fragments that a staged message is cut into, if it is longer. If this equals `staged_fragment_bytes`,
    /// all have that length.
    pub staged_least_bytes: u32,
    /// Fragments of one staged message in flight at once; at most 64.
    pub staged_depth: u32,
    /// As `rendezvous_ns`, of messages out of or into a device's memory.
    pub device_rendezvous_ns: f64,
    /// As `map_ns`, of messages out of or into a device's memory: a lookup. What a new mapping costs is `import_ns`.
    pub device_map_ns: f64,
    /// One copy by the host's processor, between a user's buffer in its memory and memory that a device's engine or
    /// the ring uses. A slower rail's own bandwidth limits it.
    pub device_host_mb_s: f64,
    /// One run of bytes in that buffer.
    pub device_host_block_ns: f64,
    /// The call that launches a kernel or a copy.
    pub launch_ns: f64,
    /// The same, and until its end is noticed.
    pub launch_wait_ns: f64,
    /// The longest copy that the device's copy worker takes, which needs no launch; 0 if there is none.
    pub worker_bytes_max: u64,
    /// A copy by it, until its end is noticed.
    pub worker_wait_ns: f64,
    /// The gap of a device's copy engine between two copies.
    pub copy_gap_ns: f64,
    /// How long a launch waits if processes take turns on one device, because there is no MPS.
    pub turn_ns: f64,
    /// Kernels within one device: packing, unpacking, moving from layout to layout.
    pub device_mb_s: f64,
    /// One run of bytes, to a kernel.
    pub device_block_ns: f64,
    /// Copies within one device.
    pub device_copy_mb_s: f64,
    /// Kernels that store to another device's memory.
    pub peer_store_mb_s: f64,
    /// Kernels that load from another device's memory.
    pub peer_load_mb_s: f64,
    /// Copy engines between two devices.
    pub peer_copy_mb_s: f64,
    /// The copy engine copies contiguous messages of this length or more between devices that map each other's
    /// memory; below it a kernel starts sooner.
    pub copy_bytes_min: u64,
    /// Copy engines from a device to page-locked host memory.
    pub to_host_mb_s: f64,
    /// Copy engines from page-locked host memory to a device.
    pub from_host_mb_s: f64,
    /// Kernels that store to page-locked host memory.
    pub store_host_mb_s: f64,
    /// Kernels that load from page-locked host memory.
    pub load_host_mb_s: f64,
    /// Registering memory of a device for adapters to read (GPUDirect), and undoing that. The default is an estimate.
    pub device_register_ns: f64,
    /// Adapters that read and write memory of devices by themselves. A slower rail's own bandwidth replaces it. The
    /// default is an estimate.
    pub device_direct_mb_s: f64,
    /// Mapping another process's memory of another device.
    pub import_ns: f64,
    /// Mapping another process's memory of the same device.
    pub import_same_ns: f64,
    /// Messages that a mapping is expected to serve, before its memory is freed.
    pub import_uses: u32,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            // As much as TCP takes; links of a host have limits of their own, below.
            eager_bytes_max: 64 << 10,
            eager_bytes_sure: 1 << 10,
            rendezvous_ns: 2_300.0,
            pipeline_mb_s: 10_000.0,
            mapped_mb_s: 14_000.0,
            map_ns: 100.0,
            single_copy_mb_s: 7_000.0,
            block_ns: 0.7,
            layout_mb_s: 1_000.0,
            fragment_bytes: 64 << 10,
            network_fragment_bytes: 120 << 10,
            depth: 8,
            device_fragment_bytes: 120 << 10,
            device_fragment_least_bytes: 16 << 10,
            device_packet_bytes: 1 << 20,
            device_far_packet_bytes: 768 << 10,
            single_copy_batch_bytes: 4 << 20,
            // Those of two H200s joined by NVLink, PCIe 5.
            staged_fragment_bytes: 32 << 20,
            staged_least_bytes: 256 << 10,
            staged_depth: 4,
            device_rendezvous_ns: 800.0,
            device_map_ns: 100.0,
            device_host_mb_s: 45_000.0,
            device_host_block_ns: 2.0,
            launch_ns: 3_800.0,
            launch_wait_ns: 8_700.0,
            worker_bytes_max: 0,
            worker_wait_ns: 3_500.0,
            copy_gap_ns: 3_000.0,
            turn_ns: 145_000.0,
            device_mb_s: 2_050_000.0,
            device_block_ns: 0.015,
            device_copy_mb_s: 2_150_000.0,
            peer_store_mb_s: 368_000.0,
            peer_load_mb_s: 375_000.0,
            peer_copy_mb_s: 396_000.0,
            copy_bytes_min: 4 << 20,
            to_host_mb_s: 55_300.0,
            from_host_mb_s: 55_300.0,
            store_host_mb_s: 52_500.0,
            load_host_mb_s: 51_000.0,
            device_register_ns: 200_000.0,
            device_direct_mb_s: 40_000.0,
            import_ns: 10_000_000.0,
            import_same_ns: 95_000.0,
            import_uses: 5_000,
        }
    }
}

impl Tuning {
    /// The same with no fragment of the pipeline longer than this, over whatever link, and with those of devices of this
    /// length, as far as the transport takes it.
    #[must_use]
    pub fn in_fragments(mut self, bytes: u32) -> Tuning {
        (self.fragment_bytes, self.network_fragment_bytes) = (bytes, bytes);
        (self.device_fragment_bytes, self.device_fragment_least_bytes) = (bytes, bytes);
        self
    }
}

/// How a [`Pml`](crate::Pml) behaves. Everything has a default.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The cost model's numbers.
    pub tuning: Tuning,
    /// Uses this protocol whenever it is possible, whatever it costs: for experiments and tests.
    pub force: Option<Protocol>,
    /// Whether peers on this host may map the device memory of messages, if devices can: one kernel then moves a
    /// message from layout to layout, and nothing is staged. With some drivers (CUDA's) freeing memory that another
    /// process has mapped is undefined, so a program must invalidate such memory first
    /// ([`Bml::invalidate`](gapless_bml::Bml::invalidate)). A program that cannot must say no here.
    pub share_device_buffers: bool,
    /// Whether peers on this host may map memory of devices for messages (CUDA's IPC): also that of the staging pool.
    /// If not, `share_device_buffers` counts as false, and messages between devices are staged in memory of the host.
    /// Windows on devices, and collectives that stay on a device, map their memory all the same.
    pub device_ipc: bool,
    /// What may be kept at most.
    pub bounds: Bounds,
    /// A short send to a peer that has not been met, because it computes, ends with a copy of its data after this time,
    /// in a call that makes progress. A peer that is in a call is met sooner.
    pub meeting: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tuning: Tuning::default(),
            force: None,
            bounds: Bounds::default(),
            share_device_buffers: true,
            device_ipc: true,
            meeting: Duration::from_millis(20),
        }
    }
}

impl Config {
    /// Whether peers may map the device memory of messages.
    pub(crate) fn shares_buffers(&self) -> bool {
        self.share_device_buffers && self.device_ipc
    }
}

/// What may be kept at most; beyond a bound a slower protocol is used or a peer is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// Messages per peer that wait for their receive in the transport's memory; more are copied
    /// out.
    pub parked_messages: u32,
    /// Flattened layouts of one peer that are kept, in bytes. A longer layout is never fetched.
    pub layout_cache_bytes: u64,
    /// How many of them.
    pub layout_cache_entries: usize,
    /// Fragments that one call of `progress` sends to one peer; 0 counts as 1.
    pub fragments_per_progress: u32,
    /// Staging memory that is kept of each device, and of the host, in bytes. A message that finds none left uses a
    /// protocol without staging. Rings of page-locked memory, by which long messages of a device go over a network, have
    /// the same bound for themselves, for each device. They are kept until the process leaves.
    pub staging_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            parked_messages: 4,
            layout_cache_bytes: 32 << 20,
            layout_cache_entries: 256,
            fragments_per_progress: 16,
            staging_bytes: 512 << 20,
        }
    }
}
