//! A message while others are outstanding: it must cost the same, however many.

#![allow(missing_docs, reason = "the macros' functions")]
#![forbid(unsafe_code)]

use criterion::{Criterion, criterion_group, criterion_main};
use gapless_bench::duo::{Duo, SLOT};

/// A tag that nothing outstanding has.
const TAG: i32 = i32::MAX;

fn posted(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("posted");
    for count in [10_i32, 1000, 100_000] {
        let mut duo = Duo::new((u64::from(count.unsigned_abs()) + 1) * SLOT).expect("two ends");
        for tag in 0..count {
            duo.post(0, tag).expect("a receive that waits");
        }
        group.bench_function(count.to_string(), |bencher| bencher.iter(|| one(&mut duo)));
    }
    group.finish();
}

fn unexpected(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("unexpected");
    for count in [10_i32, 1000, 100_000] {
        let mut duo = Duo::new(2 * SLOT).expect("two ends");
        for tag in 0..count {
            let sent = duo.send(1, tag).expect("a message that waits");
            duo.sent(sent).expect("it leaves");
        }
        group.bench_function(count.to_string(), |bencher| bencher.iter(|| one(&mut duo)));
    }
    group.finish();
}

fn one(duo: &mut Duo) {
    let received = duo.post(1, TAG).expect("one more");
    let sent = duo.send(7, TAG).expect("one more");
    duo.finish(sent, received).expect("it arrives");
}

criterion_group!(benches, posted, unexpected);
criterion_main!(benches);
