//! The conformance suite on the loopback, bare and wrapped.

use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_btl_testkit::conformance::Fixture;
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_btl_testkit::trace::{Recorder, Trace};

fn ends(config: &Config) -> (Loopback, Loopback) {
    let hub = Hub::new();
    (Loopback::with(&hub, config.clone()), Loopback::with(&hub, config.clone()))
}

/// Whose ends read each other's memory where it lies, too.
struct SingleCopyReads;

impl Fixture for SingleCopyReads {
    type Btl = Loopback;

    fn pair(&mut self) -> (Loopback, Loopback) {
        let (a, b) = ends(&Config::default());
        // SAFETY: the suite keeps the memory that it makes keys of, and writes none while it is read.
        let a = unsafe { a.with_single_copy_reads() };
        // SAFETY: as above.
        (a, unsafe { b.with_single_copy_reads() })
    }
}

gapless_btl_testkit::conformance!(single_copy_reads, SingleCopyReads);

struct Bare(Config);

impl Fixture for Bare {
    type Btl = Loopback;

    fn pair(&mut self) -> (Loopback, Loopback) {
        ends(&self.0)
    }
}

gapless_btl_testkit::conformance!(plain, Bare(Config::default()));
gapless_btl_testkit::conformance!(
    tight,
    Bare(Config { slots: 2, eager_bytes: 16, max_fragment_bytes: 256, ..Config::default() })
);
gapless_btl_testkit::conformance!(
    without_abilities,
    Bare(Config { rdma: false, mapped: false, ..Config::default() })
);

/// Storms and delays are within the contract, so the suite passes under them.
struct Rough;

impl Fixture for Rough {
    type Btl = Fault<Trace<Loopback>>;

    fn pair(&mut self) -> (Self::Btl, Self::Btl) {
        let (a, b) = ends(&Config::default());
        let rough = |end, seed| {
            let plan = Plan {
                seed,
                full_per_mille: 30,
                full_calls_max: 20,
                delay_polls_max: 5,
                ..Plan::default()
            };
            Fault::new(Trace::new(end, Recorder::new(50).listener()), plan)
        };
        (rough(a, 1), rough(b, 2))
    }
}

gapless_btl_testkit::conformance!(faulty, Rough);

/// Boxed, as bml holds it.
struct Boxed;

impl Fixture for Boxed {
    type Btl = Box<dyn gapless_btl::Btl>;

    fn pair(&mut self) -> (Self::Btl, Self::Btl) {
        let (a, b) = ends(&Config::default());
        (Box::new(a), Box::new(Trace::new(b, Recorder::new(50).listener())))
    }
}

gapless_btl_testkit::conformance!(boxed, Boxed);
