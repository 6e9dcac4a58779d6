//! Who may depend on whom: the map of the layers, as data.
//!
//! A crate's rule lists the crates of ours that it may have as normal and build dependencies. Those that only a
//! feature turns on are listed apart, and must be optional. Tests may use more: whatever lies below the
//! crate, and what the rule adds, but never a crate that itself depends on the one under test.

/// What one crate of ours may know.
pub(super) struct Rule {
    /// The package.
    pub(super) package: &'static str,
    /// Crates of ours it may depend on.
    pub(super) may: &'static [&'static str],
    /// Crates of ours it may depend on as an optional feature.
    pub(super) features: &'static [&'static str],
    /// Crates of ours that its tests may use besides what lies below it.
    pub(super) tests_may: &'static [&'static str],
    /// What stays out of it, and why the rule is as it is.
    pub(super) must_not_know: &'static str,
}

/// A crate of others that only some of ours may use.
pub(super) struct Reserved {
    /// The crate.
    pub(super) name: &'static str,
    /// Packages that may depend on it.
    pub(super) only: &'static [&'static str],
    /// Why.
    pub(super) why: &'static str,
}

/// Crates of others that one of ours must not use.
pub(super) struct Banned {
    /// The package.
    pub(super) package: &'static str,
    /// The crates.
    pub(super) names: &'static [&'static str],
    /// Why.
    pub(super) why: &'static str,
}

/// What only tests and figures use, the examples that tests and other examples run, the command, what joins the layers, then
/// every layer.
const ALL: &[&str] = &[
    "gapless-btl-testkit",
    "gapless-xtq-sim",
    "gapless-episim",
    "gapless-fft3d",
    "gapless-halo",
    "gapless-sgd",
    "gapless-cli",
    "gapless",
    "gapless-derive",
    "gapless-dtype",
    "gapless-mem",
    "gapless-mem-cuda",
    "gapless-mem-opencl",
    "gapless-kernels",
    "gapless-engine",
    "gapless-dtype-cuda",
    "gapless-gpu",
    "gapless-btl",
    "gapless-btl-sm",
    "gapless-btl-tcp",
    "gapless-btl-ib",
    "gapless-bml",
    "gapless-boot",
    "gapless-pml",
    "gapless-coll",
    "gapless-osc",
    "gapless-tuning",
    "gapless-xtq",
    "gapless-layouts",
    "gapless-report",
    "gapless-sync",
];

/// Every layer a program can be built from.
const LAYERS: &[&str] = ALL.split_at(8).1;

/// Every layer, and what joins them.
const STACK: &[&str] = ALL.split_at(7).1;

/// What the tests of all crates may use: it lies below every other.
pub(super) const TESTKIT: &str = "gapless-testkit";

/// One rule a crate. Crates that do not exist yet have theirs already; a crate without one is an error.
pub(super) const RULES: &[Rule] = &[
    Rule {
        package: TESTKIT,
        may: &[],
        features: &[],
        tests_may: &[],
        must_not_know: "any crate of ours: the tests of all use it",
    },
    Rule {
        package: "gapless-derive",
        may: &[],
        features: &[],
        tests_may: &[],
        must_not_know: "anything but syntax: what it writes names the traits by their path",
    },
    Rule {
        package: "gapless-dtype",
        may: &[],
        features: &[],
        tests_may: &[],
        must_not_know: "pointers' owners, GPUs, messages",
    },
    Rule {
        package: "gapless-mem",
        may: &[],
        features: &[],
        tests_may: &[],
        must_not_know: "datatypes, peers",
    },
    Rule {
        package: "gapless-mem-cuda",
        may: &["gapless-mem"],
        features: &[],
        tests_may: &[],
        must_not_know: "datatypes, peers",
    },
    Rule {
        package: "gapless-mem-opencl",
        may: &["gapless-mem"],
        features: &[],
        tests_may: &[],
        must_not_know: "datatypes, peers",
    },
    Rule {
        package: "gapless-kernels",
        may: &[],
        features: &[],
        // Its tests run the kernels.
        tests_may: &["gapless-mem", "gapless-mem-opencl"],
        must_not_know: "host policy",
    },
    Rule {
        package: "gapless-engine",
        may: &["gapless-dtype", "gapless-mem"],
        features: &[],
        tests_may: &["gapless-layouts"],
        must_not_know: "vendors, peers",
    },
    Rule {
        package: "gapless-dtype-cuda",
        may: &["gapless-dtype", "gapless-mem", "gapless-engine", "gapless-kernels"],
        features: &["gapless-mem-cuda", "gapless-mem-opencl"],
        tests_may: &["gapless-layouts", "gapless-xtq"],
        must_not_know: "peers, tags",
    },
    Rule {
        package: "gapless-gpu",
        may: &[
            "gapless-bml",
            "gapless-coll",
            "gapless-dtype",
            "gapless-dtype-cuda",
            "gapless-engine",
            "gapless-kernels",
            "gapless-mem",
            "gapless-xtq",
        ],
        features: &["gapless-mem-cuda", "gapless-mem-opencl"],
        tests_may: &[],
        must_not_know: "matching, tags, launchers",
    },
    Rule {
        package: "gapless-btl",
        may: &["gapless-mem"],
        features: &[],
        tests_may: &[],
        must_not_know: "datatypes, matching, MPI",
    },
    Rule {
        package: "gapless-btl-testkit",
        may: &["gapless-btl", "gapless-mem", TESTKIT],
        features: &[],
        tests_may: &[],
        must_not_know: "transports: they come to it by the contract",
    },
    Rule {
        package: "gapless-btl-sm",
        may: &["gapless-btl", "gapless-mem", "gapless-sync"],
        features: &[],
        tests_may: &["gapless-btl-testkit", "gapless-mem-cuda"],
        must_not_know: "CUDA (it sees `dyn Device`), other BTLs",
    },
    Rule {
        package: "gapless-btl-tcp",
        may: &["gapless-btl", "gapless-mem"],
        features: &[],
        tests_may: &["gapless-btl-testkit"],
        must_not_know: "CUDA, other BTLs",
    },
    Rule {
        package: "gapless-btl-ib",
        may: &["gapless-btl", "gapless-mem"],
        features: &[],
        tests_may: &["gapless-btl-testkit", "gapless-mem-cuda"],
        must_not_know: "CUDA (it sees `dyn Device`), other BTLs",
    },
    Rule {
        package: "gapless-bml",
        may: &["gapless-btl", "gapless-mem"],
        features: &[],
        tests_may: &["gapless-btl-testkit", "gapless-btl-sm", "gapless-btl-tcp"],
        must_not_know: "datatypes, matching",
    },
    Rule {
        package: "gapless-boot",
        may: &["gapless-btl", "gapless-btl-tcp", "gapless-bml", "gapless-mem"],
        features: &["gapless-btl-ib"],
        // How much memory a process of a large job has.
        tests_may: &["gapless-btl-testkit", "gapless-engine", "gapless-pml"],
        must_not_know: "datatypes, matching",
    },
    Rule {
        package: "gapless-pml",
        may: &["gapless-dtype", "gapless-engine", "gapless-bml", "gapless-mem"],
        features: &[],
        tests_may: &["gapless-btl-testkit", "gapless-btl-sm", "gapless-layouts"],
        must_not_know: "vendors, sockets, queue pairs",
    },
    Rule {
        package: "gapless-coll",
        may: &[
            "gapless-pml",
            "gapless-bml",
            "gapless-dtype",
            "gapless-engine",
            "gapless-mem",
            "gapless-sync",
        ],
        features: &[],
        tests_may: &["gapless-btl-testkit", "gapless-btl-sm", "gapless-layouts"],
        must_not_know: "fragments, transports, vendors",
    },
    Rule {
        package: "gapless-osc",
        may: &[
            "gapless-pml",
            "gapless-bml",
            "gapless-dtype",
            "gapless-engine",
            "gapless-mem",
            "gapless-xtq",
        ],
        features: &[],
        tests_may: &["gapless-btl-sm", "gapless-layouts"],
        must_not_know: "vendors",
    },
    Rule {
        package: "gapless-tuning",
        may: &["gapless-bml", "gapless-coll", "gapless-pml"],
        features: &[],
        tests_may: &[],
        must_not_know: "how the numbers are measured, and who reads them",
    },
    Rule {
        package: "gapless-xtq",
        may: &["gapless-bml", "gapless-mem", "gapless-kernels", "gapless-sync"],
        features: &[],
        tests_may: &[
            "gapless-btl-testkit",
            "gapless-btl-sm",
            "gapless-btl-ib",
            "gapless-dtype-cuda",
            "gapless-mem-cuda",
        ],
        must_not_know: "matching, datatypes, vendors",
    },
    Rule {
        package: "gapless-xtq-sim",
        may: &["gapless-xtq", "gapless-bml"],
        features: &[],
        tests_may: &[],
        must_not_know: "everything real: transports, devices, clocks",
    },
    Rule {
        package: "gapless-layouts",
        may: &["gapless-dtype"],
        features: &[],
        tests_may: &[],
        must_not_know: "buffers, messages: it only describes",
    },
    Rule {
        package: "gapless-report",
        may: &[],
        features: &[],
        tests_may: &[],
        must_not_know: "anything that is measured",
    },
    Rule {
        package: "gapless-sync",
        may: &[],
        features: &[],
        tests_may: &[],
        must_not_know: "what it guards",
    },
    Rule {
        package: "gapless",
        may: LAYERS,
        features: &[],
        tests_may: &["gapless-btl-testkit"],
        must_not_know: "tests and benches",
    },
    Rule {
        package: "gapless-episim",
        // It launches kernels of its own.
        may: &["gapless", "gapless-mem", "gapless-mem-cuda", "gapless-mem-opencl"],
        features: &[],
        // Its program plots.
        tests_may: &["gapless-report"],
        must_not_know: "engines, protocols, transports: it is a program as a user's",
    },
    Rule {
        package: "gapless-example-device",
        may: &["gapless-engine", "gapless-mem"],
        features: &[],
        // The whole stack over it.
        tests_may: &["gapless"],
        must_not_know: "the layers above engines: it is a crate as that of another vendor's GPU",
    },
    Rule {
        package: "gapless-fft3d",
        may: &["gapless"],
        features: &[],
        tests_may: &[],
        must_not_know: "the layers below: it is a program as a user's",
    },
    Rule {
        package: "gapless-sgd",
        may: &["gapless"],
        features: &[],
        tests_may: &[],
        must_not_know: "the layers below: it is a program as a user's",
    },
    Rule {
        package: "gapless-halo",
        may: &["gapless"],
        features: &[],
        tests_may: &[],
        must_not_know: "the layers below: it is a program as a user's",
    },
    Rule {
        package: "gapless-mpi",
        may: &["gapless", "gapless-dtype", "gapless-mpi-table"],
        features: &[],
        tests_may: &[],
        must_not_know: "transports and vendors",
    },
    Rule {
        package: "gapless-mpi-table",
        may: &[],
        features: &[],
        tests_may: &[],
        must_not_know: "every other crate: it is data, and what is made of it",
    },
    Rule {
        package: "gapless-cli",
        may: STACK,
        features: &[],
        tests_may: &[],
        must_not_know: "tests and benches",
    },
    Rule {
        package: "gapless-tests",
        may: ALL,
        features: &[],
        tests_may: &[],
        must_not_know: "benches",
    },
    Rule {
        package: "gapless-sim",
        may: &[
            "gapless-coll",
            "gapless-pml",
            "gapless-bml",
            "gapless-btl",
            "gapless-dtype",
            "gapless-engine",
            "gapless-mem",
        ],
        features: &[],
        tests_may: &[],
        must_not_know: "launchers, real transports, real time",
    },
    Rule {
        package: "gapless-bench",
        may: ALL,
        features: &[],
        tests_may: &[],
        must_not_know: "tests",
    },
    Rule {
        package: "gapless-peers",
        may: &["gapless", "gapless-cli", "gapless-dtype"],
        features: &[],
        tests_may: &[],
        must_not_know: "the layers below: it is a program as a user's",
    },
    Rule {
        package: "gapless-counts",
        may: &[
            "gapless-bml",
            "gapless-btl",
            "gapless-btl-sm",
            "gapless-dtype",
            "gapless-engine",
            "gapless-mem",
            "gapless-pml",
            "gapless-xtq",
        ],
        features: &[],
        tests_may: &[],
        must_not_know: "anything that takes long to build",
    },
    Rule {
        package: "xtask",
        // It knows no crate of ours itself.
        may: &["gapless-report"],
        features: &[],
        tests_may: &[],
        must_not_know: "any layer: it must build while they do not",
    },
];

/// What gives access to a vendor, and what only measuring programs need.
pub(super) const RESERVED: &[Reserved] = &[
    Reserved {
        name: "cudarc",
        only: &["gapless-mem-cuda"],
        why: "one crate opens the CUDA driver",
    },
    Reserved { name: "opencl3", only: &["gapless-mem-opencl"], why: "one crate opens OpenCL" },
    Reserved { name: "rdma-sys", only: &["gapless-btl-ib"], why: "one crate speaks verbs" },
    Reserved {
        name: "crossbeam-channel",
        only: &["gapless-xtq"],
        why: "threads that run tasks are its alone",
    },
    Reserved { name: "rustls", only: &["gapless-btl-tcp"], why: "one crate encrypts" },
    Reserved { name: "kuva", only: &["gapless-report"], why: "one crate plots" },
    Reserved {
        name: "clap",
        only: &["gapless-cli", "gapless-bench", "gapless-tests", "xtask"],
        why: "command lines belong to programs",
    },
    Reserved {
        name: "indicatif",
        only: &["gapless-cli", "gapless-bench", "gapless-episim"],
        why: "progress bars belong to programs",
    },
];

/// What would let a crate know what it must not.
pub(super) const BANNED: &[Banned] = &[
    Banned {
        package: "gapless-dtype",
        names: &["libc", "rustix", "nix", "tracing"],
        why: "describing data needs no operating system",
    },
    Banned {
        package: "gapless-layouts",
        names: &["libc", "rustix", "nix", "tracing"],
        why: "describing data needs no operating system",
    },
    Banned {
        package: "gapless-bml",
        names: &["socket2", "mio", "tokio"],
        why: "sockets are the transports' affair",
    },
    Banned {
        package: "gapless-pml",
        names: &["libc", "rustix", "nix", "socket2", "mio", "tokio"],
        why: "all it knows of the outside, it is told by bml",
    },
    Banned {
        package: "gapless-coll",
        names: &["libc", "rustix", "nix", "socket2", "mio", "tokio"],
        why: "schedules are pure, and their executor speaks pml",
    },
    Banned {
        package: "gapless-xtq",
        names: &["libc", "rustix", "nix", "socket2", "mio", "tokio"],
        why: "all it knows of the outside, it is told by bml",
    },
];

/// What the libraries of `examples/FOLDER` may depend on: they stand for another project's crate, and
/// show which of ours such a crate needs. Examples that are not listed may use any layer.
pub(super) const EXAMPLES: &[(&str, &[&str])] = &[("btl-udp", &["gapless-btl", "gapless-mem"])];

/// What any example may depend on.
pub(super) const EXAMPLES_ALL: &[&str] = ALL;
