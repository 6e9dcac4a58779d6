//! Groups (MPI 4.1 §7.3).

use crate::arg::{self, HandleOut, Out, Room};
use crate::call::Done;
use crate::face::{self, RawHandle};
use crate::session::{self, Session};
use crate::slots::{Object, Slots};
use gapless::{Comparison, Group};
use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

pub(crate) type GroupHandle = Object<Group>;

static GROUPS: Slots<Group> = Slots::new("groups");

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
    newgroup.set(match group.size() {
        0 => face::GROUP_EMPTY,
        _ => GROUPS.insert(group)?,
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

/// Ranks of a group.
fn ranks(group: &Group, ranks: &[c_int]) -> Done<Vec<u32>> {
    ranks.iter().map(|rank| arg::rank(*rank, group.size(), "ranks")).collect()
}

pub(crate) fn group_incl(group: GroupHandle, list: &[c_int], newgroup: HandleOut) -> Done {
    give(group.incl(&ranks(&group, list)?)?, newgroup)
}

pub(crate) fn group_excl(group: GroupHandle, list: &[c_int], newgroup: HandleOut) -> Done {
    give(group.excl(&ranks(&group, list)?)?, newgroup)
}

/// Ranges of ranks: first, last, stride.
fn ranges(group: &Group, list: &[[c_int; 3]]) -> Done<Vec<(u32, u32, i32)>> {
    let rank = |rank| arg::rank(rank, group.size(), "ranges");
    list.iter().map(|[first, last, stride]| Ok((rank(*first)?, rank(*last)?, *stride))).collect()
}

pub(crate) fn group_range_incl(
    group: GroupHandle,
    list: &[[c_int; 3]],
    newgroup: HandleOut,
) -> Done {
    give(group.range_incl(&ranges(&group, list)?)?, newgroup)
}

pub(crate) fn group_range_excl(
    group: GroupHandle,
    list: &[[c_int; 3]],
    newgroup: HandleOut,
) -> Done {
    give(group.range_excl(&ranges(&group, list)?)?, newgroup)
}

pub(crate) fn group_translate_ranks(
    group: GroupHandle,
    ranks: &[c_int],
    other: GroupHandle,
    translated: Room<c_int>,
) -> Done {
    let translate = |rank: &c_int| match *rank {
        face::PROC_NULL => Ok(face::PROC_NULL),
        rank => {
            let process = group.process(arg::rank(rank, group.size(), "ranks1")?);
            Ok(number(process.and_then(|process| other.rank_of(process))))
        }
    };
    translated.give(&ranks.iter().map(translate).collect::<Done<Vec<_>>>()?)
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
