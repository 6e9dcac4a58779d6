//! Every number of the cost model, by name: its place in the file, its meaning and its bounds. Reading, writing and
//! measuring use this list.

use gapless_pml::Tuning;

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Bytes per microsecond, which is MB/s.
    MbS,
    /// Bytes.
    Bytes,
    /// So many.
    Count,
}

impl Unit {
    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Unit::Ns => "ns",
            Unit::MbS => "MB/s",
            Unit::Bytes => "bytes",
            Unit::Count => "",
        }
    }
}

/// A number in a [`Tuning`].
#[derive(Debug)]
pub enum Value<'t> {
    /// Of any value.
    Real(&'t mut f64),
    /// Whole.
    Whole(&'t mut u64),
    /// Whole, and less than 2³².
    Short(&'t mut u32),
}

/// One number of the cost model.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its table.
    pub table: &'static str,
    /// Its name in the table.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// The least that makes sense.
    pub least: f64,
    /// The most that makes sense.
    pub most: f64,
    /// Its meaning, in a line.
    pub what: &'static str,
    /// Its place in a [`Tuning`].
    pub value: for<'t> fn(&'t mut Tuning) -> Value<'t>,
}

impl Key {
    /// The key of this name.
    #[must_use]
    pub fn find(table: &str, name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.table == table && key.name == name)
    }

    /// With its table.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}.{}", self.table, self.name)
    }
}

/// Longest time that is accepted: ten seconds.
const NS_MAX: f64 = 1e10;

/// Highest bandwidth that is accepted: a petabyte a second.
const MB_S_MAX: f64 = 1e9;

/// A time.
macro_rules! ns {
    ($table:literal, $name:literal, $what:literal, $($field:ident).+) => {
        Key {
            table: $table,
            name: $name,
            unit: Unit::Ns,
            least: 0.0,
            most: NS_MAX,
            what: $what,
            value: |t| Value::Real(&mut t.$($field).+),
        }
    };
}

/// A bandwidth.
macro_rules! mb_s {
    ($table:literal, $name:literal, $what:literal, $($field:ident).+) => {
        Key {
            table: $table,
            name: $name,
            unit: Unit::MbS,
            least: 1.0,
            most: MB_S_MAX,
            what: $what,
            value: |t| Value::Real(&mut t.$($field).+),
        }
    };
}

/// A whole number, in bounds of its own.
macro_rules! whole {
    ($kind:ident, $unit:ident, $table:literal, $name:literal, $least:expr, $most:expr, $what:literal, $($field:ident).+) => {
        Key {
            table: $table,
            name: $name,
            unit: Unit::$unit,
            least: $least,
            most: $most,
            what: $what,
            value: |t| Value::$kind(&mut t.$($field).+),
        }
    };
}

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;
const GIB: f64 = 1024.0 * MIB;

/// All keys of the tuning file, table by table.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    whole!(Whole, Bytes, "host", "eager_bytes_max", 0.0, GIB, "longest message sent without asking", eager_bytes_max),
    whole!(Whole, Bytes, "host", "eager_bytes_sure", 0.0, GIB, "up to here nothing but eager is considered", eager_bytes_sure),
    ns!("host", "rendezvous_ns", "a rendezvous, besides the latencies of its messages", rendezvous_ns),
    mb_s!("host", "pipeline_mb_s", "two copies through the ring", pipeline_mb_s),
    mb_s!("host", "mapped_mb_s", "one copy out of memory that both ends map", mapped_mb_s),
    ns!("host", "map_ns", "mapping a peer's memory, known as a rule", map_ns),
    mb_s!("host", "single_copy_mb_s", "one copy by the kernel, process_vm_readv", single_copy_mb_s),
    ns!("host", "block_ns", "one run of bytes, to an engine", block_ns),
    mb_s!("host", "layout_mb_s", "fetching and decoding a layout", layout_mb_s),
    whole!(Short, Bytes, "host", "fragment_bytes", 256.0, 16.0 * MIB, "a fragment of the pipeline", fragment_bytes),
    whole!(Short, Bytes, "host", "network_fragment_bytes", 256.0, 16.0 * MIB, "the same over a network", network_fragment_bytes),
    whole!(Short, Count, "host", "depth", 1.0, 4096.0, "fragments of a message in work at a time", depth),
    whole!(Whole, Bytes, "host", "single_copy_batch_bytes", 4.0 * KIB, GIB, "most that one call of single copy moves", single_copy_batch_bytes),
    whole!(Short, Bytes, "device", "fragment_bytes", 4.0 * KIB, GIB, "longest fragment of the staged protocols", staged_fragment_bytes),
    whole!(Short, Bytes, "device", "fragment_least", 4.0 * KIB, GIB, "shortest fragment that a staged message is cut into", staged_least_bytes),
    whole!(Short, Bytes, "device", "pipeline_bytes", 256.0, 16.0 * MIB, "longest fragment of the pipeline out of a device", device_fragment_bytes),
    whole!(Short, Bytes, "device", "pipeline_least", 256.0, 16.0 * MIB, "shortest fragment that such a message is cut into", device_fragment_least_bytes),
    whole!(Short, Bytes, "device", "packet_bytes", 4.0 * KIB, 4.0 * MIB, "a packet of page-locked memory between a device and a network", device_packet_bytes),
    whole!(Short, Bytes, "device", "far_packet_bytes", 4.0 * KIB, 4.0 * MIB, "the same where NUMA nodes lie between, if less", device_far_packet_bytes),
    whole!(Short, Count, "device", "depth", 1.0, 64.0, "staged fragments of a message in work at a time", staged_depth),
    ns!("device", "rendezvous_ns", "a rendezvous, where a device's memory is an end", device_rendezvous_ns),
    ns!("device", "map_ns", "mapping a peer's memory, known as a rule, likewise", device_map_ns),
    mb_s!("device", "host_mb_s", "the processor's copy between its memory and a device's link", device_host_mb_s),
    ns!("device", "host_block_ns", "one run of bytes of such a copy", device_host_block_ns),
    ns!("device", "launch_ns", "the call that launches a kernel or a copy", launch_ns),
    ns!("device", "launch_wait_ns", "the same, and until its end is noticed", launch_wait_ns),
    whole!(Whole, Bytes, "device", "worker_bytes_max", 0.0, GIB, "longest copy by a copy worker, without a launch; 0: none", worker_bytes_max),
    ns!("device", "worker_wait_ns", "such a copy, until its end is noticed", worker_wait_ns),
    ns!("device", "copy_gap_ns", "a copy engine's rest between two copies", copy_gap_ns),
    ns!("device", "turn_ns", "a launch's wait where processes take turns on a device", turn_ns),
    mb_s!("device", "pack_mb_s", "kernels within one device", device_mb_s),
    ns!("device", "block_ns", "one run of bytes, to a kernel", device_block_ns),
    mb_s!("device", "copy_mb_s", "copies within one device", device_copy_mb_s),
    mb_s!("device", "peer_store_mb_s", "kernels that store to another device", peer_store_mb_s),
    mb_s!("device", "peer_load_mb_s", "kernels that load from another device", peer_load_mb_s),
    mb_s!("device", "peer_copy_mb_s", "copy engines between two devices", peer_copy_mb_s),
    whole!(Whole, Bytes, "device", "copy_bytes_min", 0.0, GIB, "from here on the copy engine moves what has no gaps", copy_bytes_min),
    mb_s!("device", "to_host_mb_s", "copy engines to page-locked memory", to_host_mb_s),
    mb_s!("device", "from_host_mb_s", "copy engines from page-locked memory", from_host_mb_s),
    mb_s!("device", "store_host_mb_s", "kernels that store to page-locked memory", store_host_mb_s),
    mb_s!("device", "load_host_mb_s", "kernels that load from page-locked memory", load_host_mb_s),
    ns!("device", "register_ns", "registering a device's memory for an adapter to read", device_register_ns),
    mb_s!("device", "direct_mb_s", "adapters that read and write devices' memory by themselves", device_direct_mb_s),
    ns!("device", "import_ns", "mapping a process's memory of another device", import_ns),
    ns!("device", "import_same_ns", "mapping a process's memory of the same device", import_same_ns),
    whole!(Short, Count, "device", "import_uses", 1.0, 1e9, "messages that a mapping is expected to serve", import_uses),
];
