//! What a user of the transport may choose.

/// A class of equal slots in the segment that a sender shares with one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotClass {
    /// Bytes in each slot: a multiple of 64, at most 16 MiB.
    pub bytes: usize,
    /// How many slots there are for each peer; at most 512 in all classes together.
    pub count: usize,
}

/// How an [`Sm`](crate::Sm) is set up. [`SmConfig::new`] gives defaults that suit most machines;
/// both ends may differ in everything but the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmConfig {
    /// Which job this process belongs to, at most 128 bytes: processes of different jobs refuse
    /// each other.
    pub job: String,
    /// What this process is called in messages to people, at most 64 bytes.
    pub name: String,
    /// By this number, peers that this process calls look up its address. Without one, it waits until they are given its
    /// address, and does not tell who calls it ([`Btl::callers`](gapless_btl::Btl::callers)).
    pub number: Option<u32>,
    /// Cache lines in the ring towards each peer: a power of two from 16 to 65,536. A message of up
    /// to 224 bytes, or 1120 if it is sent by value, takes one line per 56 bytes, a longer one a line and
    /// a slot.
    pub ring_lines: usize,
    /// One to four classes of slots towards each peer, in ascending order of size. The last one's
    /// size is the longest message.
    pub classes: Vec<SlotClass>,
    /// The longest message in bytes worth sending without asking; no longer than the largest slot is used.
    pub eager_bytes: usize,
    /// How many tiny messages of one peer the receiver can hold at a time before the ring stops.
    pub parked: usize,
    /// Whether to offer single-copy transfers (`process_vm_readv`) where the system allows them.
    pub single_copy: bool,
    /// Bytes of peers' allocations to keep mapped while nobody uses them.
    pub map_cache_bytes: u64,
    /// Peers' allocations to keep mapped while nobody uses them.
    pub map_cache_entries: usize,
    /// Bytes of peers' device memory to keep mapped while nobody uses it: addresses, not memory.
    pub device_map_cache_bytes: u64,
    /// Buffers of peers' devices to keep mapped while nobody uses them.
    pub device_map_cache_entries: usize,
    /// Own buffers in device memory to share with peers at a time, at least 1 and at most 256.
    pub device_exports: usize,
}

impl SmConfig {
    /// The defaults for the process called `name` of `job`.
    #[must_use]
    pub fn new(job: impl Into<String>, name: impl Into<String>) -> SmConfig {
        SmConfig {
            job: job.into(),
            name: name.into(),
            number: None,
            ring_lines: 512,
            // A little over 8, 32 and 64 KiB: a header fits beside a round payload, and neighbouring
            // slots do not fall on the same sets of a cache.
            classes: vec![
                SlotClass { bytes: 8448, count: 32 },
                SlotClass { bytes: 65_792, count: 16 },
            ],
            // 64 KiB in one slot. A rendezvous with two fragments takes longer: one slot needs 0.95 of its time on a
            // Xeon with 300 MiB of cache, 0.81 on a Zen 3. The cost model decides from 32 KiB on.
            eager_bytes: 65_664,
            parked: 2048,
            single_copy: true,
            map_cache_bytes: 64 << 30,
            map_cache_entries: 256,
            device_map_cache_bytes: 1 << 42,
            device_map_cache_entries: 64,
            device_exports: 128,
        }
    }
}
