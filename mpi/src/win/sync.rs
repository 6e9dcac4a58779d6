//! Epochs (MPI 4.1 §12.5).

use super::Win;
use crate::arg::Out;
use crate::call::{Done, Fail};
use crate::face;
use crate::group::GroupHandle;
use gapless::{Assertions, Lock};
use std::ffi::c_int;

/// Assertions, of which each function takes some (MPI 4.1 §12.5.5).
fn assertions(given: c_int, takes: &[c_int]) -> Done<Assertions> {
    let known = [
        (face::MODE_NOCHECK, Assertions::NOCHECK),
        (face::MODE_NOSTORE, Assertions::NOSTORE),
        (face::MODE_NOPUT, Assertions::NOPUT),
        (face::MODE_NOPRECEDE, Assertions::NOPRECEDE),
        (face::MODE_NOSUCCEED, Assertions::NOSUCCEED),
    ];
    let all = takes.iter().fold(0, |all, one| all | one);
    if given & !all != 0 {
        return Err(Fail::new(face::ERR_ASSERT, format!("assert is {given:#x}")));
    }
    let asserted = known.into_iter().filter(|(number, _)| given & number != 0);
    Ok(asserted.map(|(_, assertion)| assertion).collect())
}

/// A rank that can be locked.
fn locked(win: &Win, rank: c_int) -> Done<u32> {
    let nobody = || Fail::new(face::ERR_RANK, "MPI_PROC_NULL has no lock");
    win.target(rank)?.ok_or_else(nobody)
}

/// The ranks of a group of processes, in the window.
fn ranks(win: &Win, group: &GroupHandle) -> Done<Vec<u32>> {
    let all = win.window.comm().group();
    let rank = |rank| {
        let process = group.process(rank);
        let found = process.and_then(|process| all.rank_of(process));
        let why = "the group has a process that the window has not";
        found.ok_or_else(|| Fail::new(face::ERR_GROUP, why))
    };
    (0..group.size()).map(rank).collect()
}

pub(crate) fn win_fence(assert: c_int, win: Win) -> Done {
    let takes = [face::MODE_NOSTORE, face::MODE_NOPUT, face::MODE_NOPRECEDE, face::MODE_NOSUCCEED];
    Ok(win.window.fence(assertions(assert, &takes)?)?)
}

pub(crate) fn win_post(group: GroupHandle, assert: c_int, win: Win) -> Done {
    let takes = [face::MODE_NOCHECK, face::MODE_NOSTORE, face::MODE_NOPUT];
    Ok(win.window.post(&ranks(&win, &group)?, assertions(assert, &takes)?)?)
}

pub(crate) fn win_start(group: GroupHandle, assert: c_int, win: Win) -> Done {
    let assertions = assertions(assert, &[face::MODE_NOCHECK])?;
    Ok(win.window.start(&ranks(&win, &group)?, assertions)?)
}

pub(crate) fn win_complete(win: Win) -> Done {
    Ok(win.window.complete()?)
}

pub(crate) fn win_wait(win: Win) -> Done {
    Ok(win.window.wait()?)
}

pub(crate) fn win_test(win: Win, flag: Out<c_int>) -> Done {
    flag.set(c_int::from(win.window.test()?));
    Ok(())
}

pub(crate) fn win_lock(lock_type: c_int, rank: c_int, assert: c_int, win: Win) -> Done {
    let kind = match lock_type {
        face::LOCK_SHARED => Lock::Shared,
        face::LOCK_EXCLUSIVE => Lock::Exclusive,
        _ => return Err(Fail::new(face::ERR_LOCKTYPE, format!("lock_type is {lock_type}"))),
    };
    let assertions = assertions(assert, &[face::MODE_NOCHECK])?;
    Ok(win.window.lock(locked(&win, rank)?, kind, assertions)?)
}

pub(crate) fn win_lock_all(assert: c_int, win: Win) -> Done {
    Ok(win.window.lock_all(assertions(assert, &[face::MODE_NOCHECK])?)?)
}

pub(crate) fn win_unlock(rank: c_int, win: Win) -> Done {
    Ok(win.window.unlock(locked(&win, rank)?)?)
}

pub(crate) fn win_unlock_all(win: Win) -> Done {
    Ok(win.window.unlock_all()?)
}

pub(crate) fn win_flush(rank: c_int, win: Win) -> Done {
    Ok(win.window.flush(locked(&win, rank)?)?)
}

pub(crate) fn win_flush_all(win: Win) -> Done {
    Ok(win.window.flush_all()?)
}

pub(crate) fn win_flush_local(rank: c_int, win: Win) -> Done {
    Ok(win.window.flush_local(locked(&win, rank)?)?)
}

pub(crate) fn win_flush_local_all(win: Win) -> Done {
    Ok(win.window.flush_local_all()?)
}

pub(crate) fn win_sync(win: Win) -> Done {
    win.window.sync();
    Ok(())
}
