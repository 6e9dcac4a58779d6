//! Groups (MPI 4.1 §7.3).

use crate::arg::{self, HandleOut, Out};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use crate::session::{self, Session};
use crate::slots::{Object, Slots};
use gapless::{Comparison, Group};
use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

pub(crate) type GroupHandle = Object<Group>;

static GROUPS: Slots<Group> = Slots::new();

/// The group of a handle.
pub(crate) fn find(handle: RawHandle) -> Option<GroupHandle> {
    static EMPTY: OnceLock<Group> = OnceLock::new();
    match handle {
        face::GROUP_EMPTY => Some(Object::Predefined(EMPTY.get_or_init(Group::empty), handle)),
        handle => GROUPS.get(handle).map(Object::Made),
    }
}

/// Gives the program a handle of a group; of an empty one it is `MPI_GROUP_EMPTY`.
pub(crate) fn give(group: Group, newgroup: HandleOut) -> Done {
    let full = || Fail::new(face::ERR_NO_MEM, "there are a million groups");
    newgroup.set(match group.size() {
        0 => face::GROUP_EMPTY,
        _ => GROUPS.insert(group).ok_or_else(full)?,
    });
    Ok(())
}

/// How two groups, or communicators, compare.
pub(crate) fn comparison(comparison: Comparison) -> c_int {
    match comparison {
        Comparison::Identical => face::IDENT,
        Comparison::Congruent => face::CONGRUENT,
        Comparison::Similar => face::SIMILAR,
        Comparison::Unequal => face::UNEQUAL,
    }
}

fn number(rank: Option<u32>) -> c_int {
    rank.map_or(face::UNDEFINED, u32::cast_signed)
}

/// This process's number in the job.
pub(crate) fn me() -> Done<u32> {
    Ok(arg::process()?.comm_world.comm.rank())
}

pub(crate) fn group_size(group: GroupHandle, size: Out<c_int>) -> Done {
    size.set(group.size().cast_signed());
    Ok(())
}

pub(crate) fn group_rank(group: GroupHandle, rank: Out<c_int>) -> Done {
    rank.set(number(group.rank_of(me()?)));
    Ok(())
}

pub(crate) fn group_compare(one: GroupHandle, other: GroupHandle, result: Out<c_int>) -> Done {
    result.set(comparison(one.compare(&other)));
    Ok(())
}

pub(crate) fn group_union(one: GroupHandle, other: GroupHandle, newgroup: HandleOut) -> Done {
    give(one.union(&other), newgroup)
}

pub(crate) fn group_intersection(
    one: GroupHandle,
    other: GroupHandle,
    newgroup: HandleOut,
) -> Done {
    give(one.intersection(&other), newgroup)
}

pub(crate) fn group_difference(one: GroupHandle, other: GroupHandle, newgroup: HandleOut) -> Done {
    give(one.difference(&other), newgroup)
}

fn no_rank(rank: i64, size: u32) -> Fail {
    Fail::new(face::ERR_RANK, format!("there is no rank {rank} in a group of {size}"))
}

/// Ranks of a group.
///
/// # Safety
/// The list has so many.
unsafe fn ranks(group: &Group, n: c_int, ranks: *const c_int) -> Done<Vec<u32>> {
    // SAFETY: the caller's promise.
    let ranks = unsafe { arg::Numbers::small(ranks).read(arg::len(n, "n")?, "ranks") }?;
    let size = group.size();
    let one = |rank: i64| u32::try_from(rank).map_err(|_| no_rank(rank, size));
    ranks.into_iter().map(one).collect()
}

pub(crate) unsafe fn group_incl(
    group: GroupHandle,
    n: c_int,
    list: *const c_int,
    newgroup: HandleOut,
) -> Done {
    // SAFETY: the caller's promise.
    give(group.incl(&unsafe { ranks(&group, n, list) }?)?, newgroup)
}

pub(crate) unsafe fn group_excl(
    group: GroupHandle,
    n: c_int,
    list: *const c_int,
    newgroup: HandleOut,
) -> Done {
    // SAFETY: the caller's promise.
    give(group.excl(&unsafe { ranks(&group, n, list) }?)?, newgroup)
}

/// Ranges of ranks.
///
/// # Safety
/// The list has so many.
unsafe fn ranges(group: &Group, n: c_int, list: *const [c_int; 3]) -> Done<Vec<(u32, u32, i32)>> {
    // SAFETY: the caller's promise: triples of numbers.
    let all = unsafe {
        arg::Numbers::small(list.cast()).read(arg::len(n, "n")?.saturating_mul(3), "ranges")
    }?;
    let rank = |rank: i64| u32::try_from(rank).map_err(|_| no_rank(rank, group.size()));
    let mut triples = Vec::new();
    for triple in all.chunks_exact(3) {
        if let [first, last, stride] = *triple {
            triples.push((rank(first)?, rank(last)?, i32::try_from(stride).unwrap_or_default()));
        }
    }
    Ok(triples)
}

pub(crate) unsafe fn group_range_incl(
    group: GroupHandle,
    n: c_int,
    list: *const [c_int; 3],
    newgroup: HandleOut,
) -> Done {
    // SAFETY: the caller's promise.
    give(group.range_incl(&unsafe { ranges(&group, n, list) }?)?, newgroup)
}

pub(crate) unsafe fn group_range_excl(
    group: GroupHandle,
    n: c_int,
    list: *const [c_int; 3],
    newgroup: HandleOut,
) -> Done {
    // SAFETY: the caller's promise.
    give(group.range_excl(&unsafe { ranges(&group, n, list) }?)?, newgroup)
}

pub(crate) unsafe fn group_translate_ranks(
    group: GroupHandle,
    n: c_int,
    ranks: *const c_int,
    other: GroupHandle,
    translated: *mut c_int,
) -> Done {
    let n = arg::len(n, "n")?;
    // SAFETY: the caller's promise.
    let ranks = unsafe { arg::Numbers::small(ranks).read(n, "ranks1") }?;
    let nobody = i64::from(face::PROC_NULL);
    let mut all = Vec::with_capacity(n);
    for rank in ranks {
        let process = u32::try_from(rank).ok().and_then(|rank| group.process(rank));
        all.push(match process {
            _ if rank == nobody => face::PROC_NULL,
            Some(process) => number(other.rank_of(process)),
            None => return Err(no_rank(rank, group.size())),
        });
    }
    // SAFETY: the caller's promise: there are as many places as ranks.
    unsafe { arg::give_all(translated, &all, "ranks2") }
}

pub(crate) fn group_free(group: HandleOut) -> Done {
    // A program may get `MPI_GROUP_EMPTY` from any call that makes a group, and may free it.
    arg::group(group.get(), "group")?;
    GROUPS.free(group.get());
    group.set(face::GROUP_NULL);
    Ok(())
}

pub(crate) fn group_from_session_pset(
    _session: Session,
    pset_name: &CStr,
    newgroup: HandleOut,
) -> Done {
    give(session::pset(pset_name)?, newgroup)
}
