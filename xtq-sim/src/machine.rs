//! The machine: Table I of LeBeane et al. 2016, and what it lacks, each with its source.
//!
//! Two numbers are calibrated, by the two times that the paper gives for a task with a payload of 64 bytes (§V.B):
//! [`Machine::kernel_start`] by XTQ's 1.2 µs, then [`Machine::event_handling`] by HSA's 1.5 µs. Nothing was changed
//! after that: [`PARAMETERS`] is the list, and a test compares it with the machine.

use crate::time::{Ps, Rate};

/// Clock of the CPU, MHz (Table I).
const CPU_MHZ: u64 = 3000;
/// Clock of the GPU, MHz (Table I).
const GPU_MHZ: u64 = 1000;

/// Bytes of a cache line.
pub const LINE: u64 = 64;
/// Bytes of an element: a float.
pub const ELEMENT: u64 = 4;

/// A node and the network, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// A read of memory that no cache has: controller, row, column, burst.
    pub dram: Ps,
    /// What all channels of memory move.
    pub dram_rate: Rate,
    /// The CPU's way through its three caches, all of which miss.
    pub cpu_caches: Ps,
    /// Cache lines that one thread of the CPU fetches at the same time.
    pub cpu_misses: u64,
    /// An instruction and a load of the GPU that hit its second-level cache, as far as that.
    pub gpu_caches: Ps,
    /// From a compute unit to its cache and back.
    pub gpu_pipeline: Ps,
    /// Computing of a wavefront, without memory.
    pub gpu_compute: Ps,
    /// The GPU's second-level cache, as the command processor sees it.
    pub gpu_second_level: Ps,
    /// Wavefronts that all compute units hold.
    pub wavefronts: u64,
    /// Work-items of a wavefront.
    pub lanes: u64,
    /// Starting one group of a kernel, after the first.
    pub group_start: Ps,
    /// From the read packet to the first instruction. Calibrated.
    pub kernel_start: Ps,
    /// The application hands a message to the NIC.
    pub post: Ps,
    /// A word or a line crosses between two devices of the chip, or between one and memory.
    pub crossing: Ps,
    /// Between two operations of the NIC on memory that do not wait for each other.
    pub nic_gap: Ps,
    /// The NIC finds the receive of a message.
    pub matching: Ps,
    /// The NIC looks a number up in a table: of further packets, and XTQ's tables.
    pub lookup: Ps,
    /// Entries of XTQ's tables that the NIC holds itself.
    pub table_cache: usize,
    /// Header of each packet on the wire, in bytes.
    pub header: u64,
    /// The longest payload of a packet, in bytes.
    pub mtu: u64,
    /// The library reads an event of the NIC and handles it. Calibrated; the read is extra.
    pub event_handling: Ps,
    /// The CPU writes a command for its GPU into a queue.
    pub command_write: Ps,
    /// What MPI adds to a send, or to a put.
    pub mpi_post: Ps,
    /// What MPI adds to a received message.
    pub mpi_receive: Ps,
    /// A link.
    pub link: Rate,
    /// The wire between a node and the switch.
    pub wire: Ps,
    /// The switch.
    pub switch: Ps,
    /// Entries of a command queue.
    pub queue: usize,
    /// Ports of the switch.
    pub ports: usize,
}

impl Machine {
    /// The machine of the paper.
    pub const PAPER: Machine = Machine {
        dram: Ps(10_000 + 13_750 + 13_750 + 5_000 + 10_000),
        dram_rate: Rate::new(8 * 8 * 1_600_000_000),
        cpu_caches: Ps::cycles(2 + 4 + 20, CPU_MHZ),
        cpu_misses: 16,
        gpu_caches: Ps::cycles(4 + 24, GPU_MHZ),
        gpu_pipeline: Ps::cycles(9 + 9, GPU_MHZ),
        gpu_compute: Ps::cycles(12 * 4, GPU_MHZ),
        gpu_second_level: Ps::cycles(24, GPU_MHZ),
        wavefronts: 24 * 40,
        lanes: 64,
        group_start: Ps::cycles(1, GPU_MHZ),
        kernel_start: Ps::ns(65),
        post: Ps::ns(65),
        crossing: Ps::ns(50),
        nic_gap: Ps(6_700),
        matching: Ps::ns(30),
        lookup: Ps::ns(2),
        table_cache: 192,
        header: 64,
        mtu: 4096,
        event_handling: Ps::ns(169),
        command_write: Ps(45_110),
        mpi_post: Ps(26_560),
        mpi_receive: Ps(224_660),
        link: Rate::new(12_500_000_000),
        wire: Ps(33_400),
        switch: Ps::ns(100),
        queue: 64,
        ports: 1024,
    };

    /// The CPU reads a word that another device has just written.
    #[must_use]
    pub fn cpu_read(&self) -> Ps {
        self.cpu_caches + self.dram
    }

    /// The CPU adds, or copies, so many bytes: two lines of memory for each of the payload, so many at a time.
    #[must_use]
    pub fn cpu_work(&self, bytes: u64) -> Ps {
        if bytes == 0 {
            return Ps::ZERO;
        }
        let lines = 2 * bytes.div_ceil(LINE);
        self.cpu_read() + Ps(self.cpu_read().0 * lines / self.cpu_misses)
    }

    /// The command processor reads a packet, or writes a signal.
    #[must_use]
    pub fn command_read(&self) -> Ps {
        self.gpu_second_level + self.dram
    }

    /// A compute unit's access to memory.
    #[must_use]
    pub fn gpu_access(&self) -> Ps {
        self.gpu_pipeline + self.gpu_caches + self.dram
    }

    /// A kernel that adds so many bytes, from its first instruction until its result is in memory: it reads its
    /// arguments, then both operands, computes and writes. `groups` are its groups.
    #[must_use]
    pub fn kernel(&self, bytes: u64, groups: u64) -> Ps {
        let wavefronts = bytes.div_ceil(ELEMENT * self.lanes).max(1);
        let wavefront = self.gpu_access() * 2 + self.gpu_compute;
        let rounds = (wavefronts - 1) / self.wavefronts;
        let memory = self.dram_rate.time(3 * bytes);
        let started = self.group_start * groups.saturating_sub(1);
        self.gpu_caches
            + self.gpu_access()
            + wavefront
            + memory.max(wavefront * rounds).max(started)
    }
}

/// Where a parameter's value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The paper's Table I.
    TableI,
    /// A publication, and what it says.
    Published(&'static str),
    /// Set by the two times of §V.B.
    Calibrated(&'static str),
    /// The model's own, where nothing is published: it has no part in what is judged, or bounds it only.
    Own(&'static str),
}

/// A parameter as documents show it.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name in [`Machine`].
    pub name: &'static str,
    /// Its value, for people.
    pub value: &'static str,
    /// The value in picoseconds, bytes, bytes a second or a number.
    pub number: fn(&Machine) -> u64,
    /// The same as it was frozen.
    pub frozen: u64,
    /// Where it is from.
    pub source: Source,
}

macro_rules! parameters {
    ($($name:ident $(. $part:tt)? = $frozen:expr, $value:expr, $source:expr;)*) => {
        /// All parameters, with their sources.
        pub const PARAMETERS: &[Parameter] = &[$(Parameter {
            name: stringify!($name),
            value: $value,
            number: |machine| machine.$name$(.$part)? as u64,
            frozen: $frozen,
            source: $source,
        }),*];
    };
}

const GEM5_DRAM: &str = "gem5's DDR3_1600_8x8 and its memory controller (Hansson et al., ISPASS 2014; src/mem/DRAMCtrl.py): \
     controller 10 + tRCD 13.75 + tCL 13.75 + burst 5 + controller 10 ns";
const GEM5_RUBY: &str =
    "gem5's RubySequencer (src/mem/ruby/system/Sequencer.py): max_outstanding_requests = 16";
const GEM5_GPU: &str = "AMD's public GPU model in gem5 (the paper's [32]; src/gpu-compute/GPU.py, 2016): \
     mem_req_latency 9 + mem_resp_latency 9 cycles";
const GCN: &str = "AMD's public GPU model in gem5, as above: a wavefront issues an instruction every 4 cycles; 12 instructions";
const SPIN_O: &str = "Hoefler et al., sPIN, SC '17, §4 (Portals 4 NIC, gem5 and LogGOPSim): injection overhead o = 65 ns";
const SPIN_L: &str = "sPIN, as above: memory access of a NIC that is integrated with the CPU, L = 50 ns; the same for doorbells";
const SPIN_G: &str = "sPIN, as above: gap g = 6.7 ns";
const SPIN_MATCH: &str = "sPIN, as above: matching a header takes 30 ns";
const SPIN_CAM: &str = "sPIN, as above: finding the channel of a further packet takes 2 ns";
const SPIN_MTU: &str = "sPIN, as above: packets of 4 KiB";
const SPIN_WIRE: &str = "sPIN, as above: 10 m of wire, 33.4 ns";
const PORTALS: &str =
    "what a put request carries (Portals 4.0.2, the paper's [17]), laid out in 64 bytes";
const TABLES: &str = "the paper, §III.C.1: for a small number of nodes the tables are on the NIC";
const BAND_MD: &str =
    "Zambre et al., Breaking Band, ICPP 2019, Table 1: descriptor 27.78 + store barrier 17.33 ns";
const BAND_POST: &str = "Breaking Band, as above: HLP_post, MPI's part of a send, 26.56 ns";
const BAND_RX: &str = "Breaking Band, as above: HLP_rx_prog, MPI's part of a receive, 224.66 ns";

use Source::{Calibrated, Own, Published, TableI};

parameters! {
    dram.0 = 52_500, "52.5 ns", Published(GEM5_DRAM);
    dram_rate.bytes_per_second = 102_400_000_000, "102.4 GB/s (8 channels of DDR3 at 800 MHz)", TableI;
    cpu_caches.0 = 8_667, "2 + 4 + 20 cycles at 3 GHz", TableI;
    cpu_misses = 16, "16 lines at a time", Published(GEM5_RUBY);
    gpu_caches.0 = 28_000, "4 + 24 cycles at 1 GHz", TableI;
    gpu_second_level.0 = 24_000, "24 cycles at 1 GHz", TableI;
    gpu_pipeline.0 = 18_000, "9 + 9 cycles", Published(GEM5_GPU);
    gpu_compute.0 = 48_000, "12 × 4 cycles", Published(GCN);
    wavefronts = 960, "24 units of 40", TableI;
    lanes = 64, "64", TableI;
    group_start.0 = 1_000, "a cycle for each further group", Own("it never counts: memory takes longer");
    kernel_start.0 = 65_000, "65 ns", Calibrated("XTQ, 64 B: 1.2 µs");
    post.0 = 65_000, "65 ns", Published(SPIN_O);
    crossing.0 = 50_000, "50 ns", Published(SPIN_L);
    nic_gap.0 = 6_700, "6.7 ns", Published(SPIN_G);
    matching.0 = 30_000, "30 ns", Published(SPIN_MATCH);
    lookup.0 = 2_000, "2 ns", Published(SPIN_CAM);
    table_cache = 192, "192 entries: all tables of one process", Published(TABLES);
    header = 64, "64 B a packet", Published(PORTALS);
    mtu = 4096, "4 KiB", Published(SPIN_MTU);
    event_handling.0 = 169_000, "169 ns", Calibrated("HSA, 64 B: 1.5 µs");
    command_write.0 = 45_110, "45.11 ns", Published(BAND_MD);
    mpi_post.0 = 26_560, "26.56 ns", Published(BAND_POST);
    mpi_receive.0 = 224_660, "224.66 ns", Published(BAND_RX);
    link.bytes_per_second = 12_500_000_000, "100 Gb/s", TableI;
    wire.0 = 33_400, "33.4 ns", Published(SPIN_WIRE);
    switch.0 = 100_000, "100 ns", TableI;
    queue = 64, "64 packets", Own("never full in what is judged");
    ports = 1024, "1024 nodes at most", Own("a star of up to 64 is judged");
}

impl std::fmt::Display for Parameter {
    /// A line of the table in `docs/xtq-sim.md`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "| `{}` | {} | ", self.name, self.value)?;
        match self.source {
            TableI => write!(f, "Table I"),
            Published(what) => write!(f, "{what}"),
            Calibrated(by) => write!(f, "**calibrated** by {by}"),
            Own(why) => write!(f, "the model's own; {why}"),
        }?;
        write!(f, " |")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_the_one_that_was_frozen() {
        for parameter in PARAMETERS {
            assert_eq!((parameter.number)(&Machine::PAPER), parameter.frozen, "{}", parameter.name);
        }
    }

    /// In a bundle that was carried elsewhere there are no documents.
    #[test]
    fn the_document_has_this_table() {
        let Ok(text) =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/xtq-sim.md"))
        else {
            return eprintln!("SKIPPED: the table of docs/xtq-sim.md: no repository here");
        };
        let table: Vec<String> = PARAMETERS.iter().map(Parameter::to_string).collect();
        assert!(text.contains(&table.join("\n")), "the table is:\n{}", table.join("\n"));
    }
}
