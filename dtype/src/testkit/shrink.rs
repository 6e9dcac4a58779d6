//! Making a failing type smaller: every candidate is one step simpler than the type it came from,
//! so that accepting candidates one after another ends.

use super::tree::{children, with_children};
use crate::{Contents, Datatype, Primitive};

/// Simpler types than `datatype`, boldest first: its children, then the same constructor with a
/// smaller argument, then the same constructor over a simpler child. Illegal ones are left out.
pub fn simpler(datatype: &Datatype) -> Vec<Datatype> {
    let mut found = children(datatype);
    arguments(datatype, &mut found);
    let types = children(datatype);
    for (at, child) in types.iter().enumerate() {
        for simpler_child in simpler(child) {
            let mut types = types.clone();
            types[at] = simpler_child;
            found.extend(with_children(datatype, &types));
        }
    }
    found
}

/// The smallest type reachable through [`simpler`] that still `fails`, looking at no more than
/// `tries_max` candidates.
pub fn minimise(
    datatype: &Datatype,
    tries_max: u32,
    mut fails: impl FnMut(&Datatype) -> bool,
) -> Datatype {
    let mut smallest = datatype.clone();
    let mut tries = 0;
    'again: loop {
        for candidate in simpler(&smallest) {
            if tries == tries_max {
                return smallest;
            }
            tries += 1;
            if fails(&candidate) {
                smallest = candidate;
                continue 'again;
            }
        }
        return smallest;
    }
}

fn arguments(datatype: &Datatype, found: &mut Vec<Datatype>) {
    match datatype.contents() {
        Contents::Primitive(Primitive::Byte) | Contents::Dup { .. } => {}
        Contents::Primitive(_) => found.push(Primitive::Byte.into()),
        Contents::Contiguous { count, old } => {
            let smaller = counts(count).into_iter();
            found.extend(smaller.flat_map(|count| Datatype::contiguous(count, old)));
        }
        Contents::Vector { count: n, blocklength: b, stride: s, old } => {
            found.extend(counts(n).into_iter().flat_map(|n| Datatype::vector(n, b, s, old)));
            found.extend(counts(b).into_iter().flat_map(|b| Datatype::vector(n, b, s, old)));
            found.extend(offsets(s).into_iter().flat_map(|s| Datatype::vector(n, b, s, old)));
        }
        Contents::Hvector { count: n, blocklength: b, stride_bytes: s, old } => {
            found.extend(counts(n).into_iter().flat_map(|n| Datatype::hvector(n, b, s, old)));
            found.extend(counts(b).into_iter().flat_map(|b| Datatype::hvector(n, b, s, old)));
            found.extend(offsets(s).into_iter().flat_map(|s| Datatype::hvector(n, b, s, old)));
        }
        Contents::Indexed { blocklengths, displacements, old } => {
            lists(blocklengths, displacements, |lengths, displacements, _| {
                found.extend(Datatype::indexed(lengths, displacements, old));
            });
        }
        Contents::Hindexed { blocklengths, displacements_bytes, old } => {
            lists(blocklengths, displacements_bytes, |lengths, displacements, _| {
                found.extend(Datatype::hindexed(lengths, displacements, old));
            });
        }
        Contents::IndexedBlock { blocklength: b, displacements, old } => {
            let smaller = counts(b).into_iter();
            found.extend(smaller.flat_map(|b| Datatype::indexed_block(b, displacements, old)));
            let lengths = vec![0; displacements.len()];
            lists(&lengths, displacements, |_, displacements, _| {
                found.extend(Datatype::indexed_block(b, displacements, old));
            });
        }
        Contents::HindexedBlock { blocklength: b, displacements_bytes, old } => {
            let smaller = counts(b).into_iter();
            let new = |b| Datatype::hindexed_block(b, displacements_bytes, old);
            found.extend(smaller.flat_map(new));
            let lengths = vec![0; displacements_bytes.len()];
            lists(&lengths, displacements_bytes, |_, displacements, _| {
                found.extend(Datatype::hindexed_block(b, displacements, old));
            });
        }
        Contents::Struct { blocklengths, displacements_bytes, types } => {
            lists(blocklengths, displacements_bytes, |lengths, displacements, kept| {
                let types: Vec<_> = kept.iter().map(|&at| types[at].clone()).collect();
                found.extend(Datatype::structure(lengths, displacements, &types));
            });
        }
        Contents::Subarray { sizes, subsizes, starts, order, old } => {
            for axis in 0..sizes.len() {
                if sizes.len() > 1 {
                    let fewer = (without(sizes, axis), without(subsizes, axis));
                    let starts = without(starts, axis);
                    found.extend(Datatype::subarray(&fewer.0, &fewer.1, &starts, order, old));
                }
                for subsize in counts(subsizes[axis]) {
                    let subsizes = replaced(subsizes, axis, subsize);
                    found.extend(Datatype::subarray(sizes, &subsizes, starts, order, old));
                }
                for start in counts(starts[axis]) {
                    let starts = replaced(starts, axis, start);
                    found.extend(Datatype::subarray(sizes, subsizes, &starts, order, old));
                }
                for size in counts(sizes[axis]) {
                    let sizes = replaced(sizes, axis, size);
                    found.extend(Datatype::subarray(&sizes, subsizes, starts, order, old));
                }
            }
        }
        Contents::Darray { size, rank, gsizes, distribs, dargs, psizes, order, old } => {
            for axis in 0..gsizes.len() {
                for gsize in counts(gsizes[axis]) {
                    let gsizes = replaced(gsizes, axis, gsize);
                    found.extend(Datatype::darray(
                        size, rank, &gsizes, distribs, dargs, psizes, order, old,
                    ));
                }
            }
            for rank in counts(rank) {
                found.extend(Datatype::darray(
                    size, rank, gsizes, distribs, dargs, psizes, order, old,
                ));
            }
        }
        Contents::Resized { lb, extent, old } => {
            let smaller = offsets(lb).into_iter();
            found.extend(smaller.flat_map(|lb| Datatype::resized(lb, extent, old)));
            let smaller = offsets(extent).into_iter();
            found.extend(smaller.flat_map(|extent| Datatype::resized(lb, extent, old)));
        }
    }
}

/// Smaller counts: none, half, one less.
fn counts(count: u64) -> Vec<u64> {
    let mut smaller = vec![0, count / 2, count.saturating_sub(1)];
    smaller.dedup();
    smaller.retain(|&candidate| candidate < count);
    smaller
}

/// Displacements nearer to zero: zero, the mirror image of a negative one, half, one nearer.
fn offsets(offset: i64) -> Vec<i64> {
    let mut nearer = vec![0, offset / 2, offset - offset.signum()];
    if offset < 0 {
        nearer.extend(offset.checked_neg());
    }
    nearer.dedup();
    nearer.retain(|&candidate| candidate != offset);
    nearer
}

/// Parallel lists with half or one of their entries gone, or one number smaller. `emit` gets the
/// lists and which of the old entries they hold.
fn lists(lengths: &[u64], offsets_: &[i64], mut emit: impl FnMut(&[u64], &[i64], &[usize])) {
    let all: Vec<usize> = (0..lengths.len()).collect();
    let mut keep = |kept: &[usize]| {
        let fewer: Vec<u64> = kept.iter().map(|&at| lengths[at]).collect();
        let nearer: Vec<i64> = kept.iter().map(|&at| offsets_[at]).collect();
        emit(&fewer, &nearer, kept);
    };
    if all.len() > 2 {
        let (front, back) = all.split_at(all.len() / 2);
        keep(front);
        keep(back);
    }
    for at in &all {
        let kept: Vec<usize> = all.iter().copied().filter(|other| other != at).collect();
        keep(&kept);
    }
    for &at in &all {
        for length in counts(lengths[at]) {
            emit(&replaced(lengths, at, length), offsets_, &all);
        }
        for offset in offsets(offsets_[at]) {
            emit(lengths, &replaced(offsets_, at, offset), &all);
        }
    }
}

fn replaced<T: Copy>(items: &[T], at: usize, item: T) -> Vec<T> {
    let mut items = items.to_vec();
    items[at] = item;
    items
}

fn without<T: Copy>(items: &[T], at: usize) -> Vec<T> {
    let mut items = items.to_vec();
    items.remove(at);
    items
}
