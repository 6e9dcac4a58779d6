//! The convertor's inner loops, in cache: whole packs and unpacks of small layouts, a fragment from
//! the middle, a commit.
//!
//! What out-of-cache memory makes of them is `figures pack`'s to say.

#![allow(missing_docs, reason = "the macros' functions")]
#![forbid(unsafe_code)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gapless_bench::rotation::Arena;
use gapless_bench::subjects::{list, named};
use gapless_dtype::Convertor;
use gapless_layouts::Case;

fn subjects() -> Vec<Case> {
    let one = |name, n| named(name, Some(n)).expect("a layout of the catalogue").remove(0);
    let list = |doubles| list(4096, doubles, false).expect("a short list");
    vec![one("v", 96), one("t", 128), one("x", 96), list(1), list(3), one("struct", 2048)]
}

fn convertor(criterion: &mut Criterion) {
    for case in subjects() {
        let layout = case.send.datatype.commit().expect("it commits");
        let mut cursor = Convertor::new(&layout, case.send.count).expect("it is small");
        let mut user = Arena::new(case.send.buffer_bytes, 1);
        let mut wire = Arena::new(case.payload_bytes, 2);
        let origin = usize::try_from(case.send.origin).expect("it is small");
        let mut group = criterion.benchmark_group(&case.name);
        group.throughput(Throughput::Bytes(case.payload_bytes));
        group.bench_function("pack", |bencher| {
            bencher.iter(|| {
                cursor.seek(0).expect("there is a beginning");
                black_box(cursor.pack(user.bytes(), origin, wire.bytes_mut()))
            });
        });
        group.bench_function("unpack", |bencher| {
            bencher.iter(|| {
                cursor.seek(0).expect("there is a beginning");
                black_box(cursor.unpack(wire.bytes(), user.bytes_mut(), origin))
            });
        });
        let mut fragment = [0; 512];
        let middle = case.payload_bytes / 2 + 3;
        group.throughput(Throughput::Bytes(512));
        group.bench_function("512 B from the middle", |bencher| {
            bencher.iter(|| {
                cursor.seek(middle).expect("it is in the middle");
                black_box(cursor.pack(user.bytes(), origin, &mut fragment))
            });
        });
        group.finish();
    }
}

fn commit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("commit");
    for case in subjects() {
        group.bench_function(&case.name, |bencher| bencher.iter(|| case.send.datatype.commit()));
    }
    group.finish();
}

criterion_group!(benches, convertor, commit);
criterion_main!(benches);
