//! What peers reached on an H200, quoted and not measured here: GB/s of payload while packing, each at
//! rest with its plan warm, or between two of them. Rows show them beside ours, marked `quoted`.

/// Where the readings are from.
pub const SOURCE: &str = "quoted: one H200, driver 580, CUDA 13.0, November 2026";

/// Where the readings between two GPUs are from.
pub const SOURCE_TWO: &str = "quoted: two H200, driver 580, CUDA 13.0, November 2026";

/// yaksa, MPICH's datatype engine.
pub const YAKSA: &str = "yaksa 0.4";
/// Open MPI's engine for GPU memory.
pub const OPENMPI: &str = "Open MPI 5.0.7";

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quoted {
    /// Whose.
    pub peer: &'static str,
    /// The layout, without its size.
    pub layout: &'static str,
    /// The size, as the layout understands it.
    pub n: u64,
    /// `pack`, `unpack`, or `oneway` for ping-pong between two GPUs.
    pub op: &'static str,
    /// GB/s of payload.
    pub gbps: f64,
}

const fn pack(peer: &'static str, layout: &'static str, n: u64, gbps: f64) -> Quoted {
    Quoted { peer, layout, n, op: "pack", gbps }
}

const fn oneway(peer: &'static str, layout: &'static str, n: u64, gbps: f64) -> Quoted {
    Quoted { peer, layout, n, op: "oneway", gbps }
}

const fn unpack(peer: &'static str, layout: &'static str, n: u64, gbps: f64) -> Quoted {
    Quoted { peer, layout, n, op: "unpack", gbps }
}

/// Every reading. Blocks are at twice their length; lists have 1 M blocks; faces are of 512³, 3 deep,
/// and `n` is the depth.
pub const QUOTED: &[Quoted] = &[
    pack(YAKSA, "V", 1024, 745.0),
    pack(YAKSA, "V", 2048, 5.7),
    pack(YAKSA, "V", 4096, 11.5),
    pack(YAKSA, "V", 8192, 23.5),
    pack(OPENMPI, "V", 1024, 1.0),
    pack(OPENMPI, "V", 2048, 1.8),
    pack(OPENMPI, "V", 4096, 3.8),
    pack(YAKSA, "T", 1024, 23.5),
    pack(YAKSA, "T", 4096, 5.5),
    pack(YAKSA, "T", 8192, 11.6),
    pack(OPENMPI, "T", 1024, 0.5),
    pack(OPENMPI, "T", 4096, 1.9),
    pack(YAKSA, "X", 1024, 479.0),
    pack(YAKSA, "X", 4096, 684.0),
    unpack(YAKSA, "X", 1024, 346.0),
    unpack(YAKSA, "X", 4096, 430.0),
    pack(OPENMPI, "X", 1024, 0.002),
    pack(YAKSA, "blocks", 8, 1220.0),
    pack(YAKSA, "blocks", 64, 1377.0),
    unpack(YAKSA, "blocks", 8, 849.0),
    unpack(YAKSA, "blocks", 64, 1421.0),
    pack(YAKSA, "list 3 doubles", 1 << 20, 708.0),
    pack(YAKSA, "list 3 doubles shuffled", 1 << 20, 619.0),
    pack(YAKSA, "list 1 to 3 doubles", 1 << 20, 0.02),
    pack(YAKSA, "face x", 3, 819.0),
    pack(YAKSA, "face y", 3, 3.9),
    pack(YAKSA, "face z", 3, 3.8),
    oneway(OPENMPI, "V", 4096, 2.1),
    oneway(OPENMPI, "T", 4096, 1.35),
    oneway(OPENMPI, "X", 4096, 0.002),
];

/// The readings of one layout, size and operation.
pub fn of<'a>(layout: &'a str, n: u64, op: &'a str) -> impl Iterator<Item = &'static Quoted> + 'a {
    QUOTED.iter().filter(move |it| it.layout == layout && it.n == n && it.op == op)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_there_once_and_found() {
        for quoted in QUOTED {
            assert!(quoted.gbps > 0.0);
            let found = of(quoted.layout, quoted.n, quoted.op).filter(|it| it.peer == quoted.peer);
            assert_eq!(found.count(), 1, "{quoted:?}");
        }
        assert_eq!(of("V", 1024, "pack").count(), 2);
        assert_eq!(of("V", 3, "pack").count(), 0);
    }
}
