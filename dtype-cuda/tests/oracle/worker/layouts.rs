//! Tasks that pack and unpack by layout, against the oracle's typemap.

use super::*;
use gapless_dtype::naive::Typemap;
use gapless_dtype::testkit::{Params, random_datatype};
use gapless_dtype::{Datatype, Primitive, Run};
use gapless_dtype_cuda::{LayoutError, WorkerLayout};

const BUFFER: u64 = 1 << 17;

fn directed() -> Vec<(Datatype, u64)> {
    let double = Datatype::from(Primitive::Double);
    let byte = Datatype::from(Primitive::Byte);
    let rows: Vec<(u64, i64)> = (0..40u64).map(|row| (row + 1, row.cast_signed() * 41)).collect();
    let lengths: Vec<u64> = rows.iter().map(|row| row.0).collect();
    let places: Vec<i64> = rows.iter().map(|row| row.1).collect();
    vec![
        (Datatype::vector(37, 3, 7, &double).unwrap(), 2),
        (Datatype::vector(5, 3, -9, &byte).unwrap(), 1),
        (Datatype::indexed(&lengths, &places, &double).unwrap(), 1),
        (Datatype::indexed(&[1, 1, 1, 1], &[9, 2, 30, 11], &double).unwrap(), 3),
        (double, 500),
    ]
}

#[test]
fn tasks_pack_and_unpack_what_the_oracle_says() {
    let Some(device) = device("worker, layouts") else { return };
    let mut rng = rng("worker, layouts");
    let mut bench = Bench::new(&device, LIFE, 1);
    let unpacked = bench.register(0, DeviceFunction::Unpack, BUFFER, 65536);
    let both = bench.register(1, DeviceFunction::Pack, BUFFER, 0);
    bench.post(pinned(&device, 65536));
    let params = Params { overlaps: false, bytes_max: 1 << 14, ..Params::default() };
    let random =
        (0..cases(120)).map(|_| (random_datatype(&mut rng, &params), 0)).collect::<Vec<_>>();
    let (mut moved, mut inline) = (0u64, 0u64);
    for (number, (datatype, count)) in directed().into_iter().chain(random).enumerate() {
        let count = if count == 0 { 1 + rng.below(3) } else { count };
        let runs: Vec<Run> = Typemap::of(&datatype).unwrap().runs(count).unwrap();
        let bytes: u64 = runs.iter().map(|run| run.len).sum();
        let layout = datatype.commit().unwrap();
        let made = WorkerLayout::new(&device, &layout, count);
        if bytes == 0 {
            assert!(matches!(made, Err(LayoutError::Empty)), "{made:?}");
            continue;
        }
        let made = made.unwrap();
        assert_eq!(made.bytes(), bytes);
        let (low, high) = made.bounds();
        let origin = (-low.min(0)).cast_unsigned().next_multiple_of(8) + 8 * rng.below(4);
        let end = (origin.cast_signed() + high.max(0)).cast_unsigned().next_multiple_of(8);
        if end + bytes > BUFFER || bytes > 65536 {
            continue;
        }
        let which = u8::try_from(number % 32).unwrap();
        // SAFETY: it is a form.
        unsafe { bench.target.register_layout(which, Some(made.form().clone())) }.unwrap();
        let name = format!("{number}: {count} of {datatype:?}, at {origin}");
        let launch = Launch::linear(1, [1, 32, 512][rng.index(3)], 0);
        let mut noise = vec![0; usize::try_from(BUFFER).unwrap()];
        rng.fill(&mut noise);
        let place = |run: &Run| {
            let from = usize::try_from(origin.cast_signed() + run.displacement).unwrap();
            from..from + usize::try_from(run.len).unwrap()
        };
        // Unpacked: the bytes of the layout, and no other.
        let mut payload = vec![0; usize::try_from(bytes).unwrap()];
        rng.fill(&mut payload);
        set(&unpacked, &noise);
        let put =
            Put { index: 0, queue: 0, launch, words: &[which.into(), origin], payload: &payload };
        assert_eq!(bench.run(&put), PutOutcome::Ended, "{name}");
        let (mut expected, mut at) = (noise.clone(), 0);
        for run in &runs {
            let place = place(run);
            let len = place.len();
            expected[place].copy_from_slice(&payload[at..at + len]);
            at += len;
        }
        assert!(bytes_of(&unpacked) == expected, "unpacked, {name}");
        // Packed behind what it reads.
        set(&both, &noise);
        let put =
            Put { index: 1, queue: 0, launch, words: &[which.into(), origin, end], payload: &[] };
        assert_eq!(bench.run(&put), PutOutcome::Ended, "{name}");
        let packed: Vec<u8> = runs.iter().flat_map(|run| noise[place(run)].to_vec()).collect();
        let mut expected = noise.clone();
        let to = usize::try_from(end).unwrap();
        expected[to..to + packed.len()].copy_from_slice(&packed);
        assert!(bytes_of(&both) == expected, "packed, {name}");
        moved += 1;
        inline += u64::from(bytes <= 100);
        // What leaves the buffer, or is of another length.
        let reach = high.max(0).cast_unsigned();
        let outside =
            (BUFFER - reach).next_multiple_of(8).max(8) + if reach % 8 == 0 { 8 } else { 0 };
        for (words, payload, why) in [
            (vec![u64::from(which), outside], &payload[..], Failure::Outside),
            (vec![u64::from(which), u64::MAX - 7], &payload[..], Failure::Outside),
            (vec![u64::from(which), origin + 4], &payload[..], Failure::Outside),
            (vec![u64::from(which), origin], &payload[1..], Failure::Outside),
            (vec![31 + (number as u64 % 7), origin], &payload[..], Failure::Unknown),
        ] {
            if why == Failure::Unknown && (words[0] == u64::from(which) || number >= 31) {
                continue;
            }
            let put = Put { index: 0, queue: 0, launch, words: &words, payload };
            assert_eq!(bench.run(&put), PutOutcome::Failed(why), "{words:?}, {name}");
        }
    }
    println!("{moved} layouts, {inline} of them in slots");
    assert!(moved > 60 && inline > 3, "{moved}, {inline}");
}
