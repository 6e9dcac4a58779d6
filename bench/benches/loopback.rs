//! A message through the whole message layer over the loopback transport, both ends in one thread:
//! what the eager path costs besides the wire.

#![allow(missing_docs, reason = "the macros' functions")]
#![forbid(unsafe_code)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gapless_bench::duo::Duo;
use gapless_bench::subjects::{contiguous_case, named};

fn eager(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("eager");
    let v = |n| named("v", Some(n)).expect("a layout of the catalogue").remove(0);
    for case in [contiguous_case(1), contiguous_case(1024), v(4), v(11)] {
        let layout = case.send.datatype.commit().expect("it commits");
        let mut duo = Duo::new(case.send.buffer_bytes).expect("two ends");
        let count = case.send.count;
        group.throughput(Throughput::Bytes(case.payload_bytes));
        group.bench_function(&case.name, |bencher| {
            bencher.iter(|| {
                let received = duo.post_typed(&layout, count, 0).expect("it fits");
                let sent = duo.send_typed(&layout, count, 0).expect("it fits");
                duo.finish(sent, received).expect("it arrives");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, eager);
criterion_main!(benches);
