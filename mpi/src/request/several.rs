//! Waiting for several requests, and looking at them without taking anything (MPI 4.1 §3.7.5, §3.7.6); statuses.

use super::{RequestObject, Work, empty_status, find, settle};
use crate::arg::{self, HandleOut, Out, StatusOut, StatusesOut};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle, Status};
use crate::process;
use crate::slots::InUse;
use gapless::raw;
use std::ffi::c_int;

/// A request of a list: where its handle is, and the request.
struct Entry {
    index: usize,
    at: HandleOut,
    object: InUse<RequestObject>,
}

/// Where handles of a list are.
///
/// # Safety
/// The list has so many.
pub(super) unsafe fn places(count: c_int, requests: *mut RawHandle) -> Done<Vec<HandleOut>> {
    let count = arg::len(count, "count")?;
    if count == 0 {
        return Ok(Vec::new());
    }
    arg::pointer(requests, "array_of_requests")?;
    let place = |index| {
        // SAFETY: the caller's promise.
        unsafe { arg::out(requests.wrapping_add(index), "array_of_requests") }
    };
    (0..count).map(place).collect()
}

/// The active ones of a list.
///
/// # Safety
/// As [`places`].
unsafe fn active(count: c_int, requests: *mut RawHandle) -> Done<Vec<Entry>> {
    let mut all = Vec::new();
    // SAFETY: the caller's promise.
    for (index, at) in unsafe { places(count, requests) }?.into_iter().enumerate() {
        if let Some(object) = find(at.get())? {
            let is_active = object.look().is_active();
            if is_active {
                all.push(Entry { index, at, object });
            }
        }
    }
    Ok(all)
}

impl Entry {
    /// How it ended, if it has: its handle goes then.
    fn test(&self) -> Option<(Status, Done)> {
        let mut state = self.object.state();
        let ended = state.test()?;
        let goes = state.goes();
        drop(state);
        Some(settle(&self.object, self.at, goes, ended))
    }

    /// The same, waited for.
    fn wait(&self) -> (Status, Done) {
        wait_for(&self.object, self.at).unwrap_or_else(|| (empty_status(), Ok(())))
    }
}

/// Waits for a request; `None` if it is inactive.
pub(super) fn wait_for(object: &RequestObject, at: HandleOut) -> Option<(Status, Done)> {
    let mut state = object.state();
    let mut waited = Ok(());
    if state.shared || process::is_threaded() {
        drop(state);
        waited = object.await_shared();
        state = object.state();
    }
    if !state.is_active() {
        return None;
    }
    let (ended, goes) = (state.wait(), state.goes());
    drop(state);
    let (status, done) = settle(object, at, goes, ended);
    Some((status, waited.and(done)))
}

/// Which of them have ended: their places in the list. Makes progress once; takes nothing.
fn ended(entries: &[Entry]) -> Done<Vec<usize>> {
    let states: Vec<_> = entries.iter().map(|entry| entry.object.look()).collect();
    let parts = states.iter().enumerate().flat_map(|(at, state)| {
        let active = |request: &&raw::Request| request.is_active();
        state.parts().iter().filter(active).map(move |request| (at, request))
    });
    let (owners, requests): (Vec<usize>, Vec<&raw::Request>) = parts.unzip();
    let mut left = vec![0; entries.len()];
    owners.iter().for_each(|at| left[*at] += 1);
    for over in raw::Request::test_some(&requests)? {
        left[owners[over]] -= 1;
    }
    Ok((0..entries.len()).filter(|at| left[*at] == 0).collect())
}

/// Waits until some of them have ended: their places in the list.
fn await_some(entries: &[Entry]) -> Done<Vec<usize>> {
    loop {
        let over = ended(entries)?;
        if !over.is_empty() {
            return Ok(over);
        }
        let states: Vec<_> = entries.iter().map(|entry| entry.object.look()).collect();
        // Of both parts of an exchange, whichever is not over.
        let pending = |request: &&raw::Request| request.is_active() && request.peek().is_none();
        let requests: Vec<&raw::Request> = states
            .iter()
            .filter_map(|state| match state.parts() {
                [one] => Some(one),
                parts => parts.iter().find(pending),
            })
            .collect();
        raw::Request::wait_any(&requests)?;
    }
}

pub(crate) unsafe fn waitany(
    count: c_int,
    requests: *mut RawHandle,
    index: Out<c_int>,
    status: StatusOut,
) -> Done {
    index.set(face::UNDEFINED);
    // SAFETY: the caller's promise.
    let entries = unsafe { active(count, requests) }?;
    if entries.is_empty() {
        status.set_all(empty_status());
        return Ok(());
    }
    let over = await_some(&entries)?;
    take_any(&entries, &over, index, status).unwrap_or(Ok(()))
}

/// Takes the first that has ended.
fn take_any(
    entries: &[Entry],
    over: &[usize],
    index: Out<c_int>,
    status: StatusOut,
) -> Option<Done> {
    let entry = entries.get(*over.first()?)?;
    let (came, done) = entry.wait();
    index.set(number(entry.index));
    status.set(came);
    Some(done)
}

fn number(index: usize) -> c_int {
    c_int::try_from(index).unwrap_or(face::UNDEFINED)
}

pub(crate) unsafe fn testany(
    count: c_int,
    requests: *mut RawHandle,
    index: Out<c_int>,
    flag: Out<c_int>,
    status: StatusOut,
) -> Done {
    index.set(face::UNDEFINED);
    flag.set(1);
    // SAFETY: the caller's promise.
    let entries = unsafe { active(count, requests) }?;
    if entries.is_empty() {
        status.set_all(empty_status());
        return Ok(());
    }
    let over = ended(&entries)?;
    take_any(&entries, &over, index, status).unwrap_or_else(|| {
        flag.set(0);
        Ok(())
    })
}

pub(crate) unsafe fn waitall(
    count: c_int,
    requests: *mut RawHandle,
    statuses: StatusesOut,
) -> Done {
    // SAFETY: the caller's promise.
    let places = unsafe { places(count, requests) }?;
    // All handles first: of a list with a wrong one, nothing is taken.
    let objects: Vec<_> = places.iter().map(|at| find(at.get())).collect::<Done<_>>()?;
    let mut failed = false;
    let mut all = Vec::with_capacity(objects.len());
    for (at, object) in places.into_iter().zip(objects) {
        let waited = object.and_then(|object| wait_for(&object, at));
        let waited = waited.unwrap_or_else(|| (empty_status(), Ok(())));
        failed |= waited.1.is_err();
        all.push(waited);
    }
    give_statuses(&mut all, statuses, failed)
}

/// Stores statuses in their order. If one failed, each has its error (MPI 4.1 §3.7.5).
fn give_statuses(all: &mut [(Status, Done)], statuses: StatusesOut, failed: bool) -> Done {
    let mut subject = None;
    for (index, (status, done)) in all.iter_mut().enumerate() {
        let error = match done {
            Ok(()) => face::SUCCESS,
            Err(fail) => {
                subject = subject.or(fail.subject.take());
                fail.code
            }
        };
        match failed {
            true => {
                status.error = error;
                statuses.at(index).set_all(*status);
            }
            false => statuses.at(index).set(*status),
        }
    }
    if !failed {
        return Ok(());
    }
    let why = all.iter().find_map(|(_, done)| done.as_ref().err().map(|fail| fail.why.clone()));
    Err(Fail { code: face::ERR_IN_STATUS, why: why.unwrap_or_default(), subject })
}

pub(crate) unsafe fn testall(
    count: c_int,
    requests: *mut RawHandle,
    flag: Out<c_int>,
    statuses: StatusesOut,
) -> Done {
    // SAFETY: the caller's promise.
    let entries = unsafe { active(count, requests) }?;
    let over = ended(&entries)?.len() == entries.len();
    flag.set(c_int::from(over));
    match over {
        // SAFETY: the caller's promise.
        true => unsafe { waitall(count, requests, statuses) },
        false => Ok(()),
    }
}

/// Takes all that have ended.
fn take_some(
    entries: &[Entry],
    over: &[usize],
    outcount: Out<c_int>,
    indices: *mut c_int,
    statuses: StatusesOut,
) -> Done {
    let mut all = Vec::new();
    let mut failed = false;
    for entry in over.iter().filter_map(|at| entries.get(*at)) {
        if let Some(taken) = entry.test() {
            failed |= taken.1.is_err();
            // SAFETY: the list of indices has as many places as the list of requests (MPI 4.1 §3.7.5).
            unsafe { indices.wrapping_add(all.len()).write(number(entry.index)) };
            all.push(taken);
        }
    }
    outcount.set(number(all.len()));
    give_statuses(&mut all, statuses, failed)
}

pub(crate) unsafe fn waitsome(
    count: c_int,
    requests: *mut RawHandle,
    outcount: Out<c_int>,
    indices: *mut c_int,
    statuses: StatusesOut,
) -> Done {
    outcount.set(face::UNDEFINED);
    // SAFETY: the caller's promise.
    let entries = unsafe { active(count, requests) }?;
    if entries.is_empty() {
        return Ok(());
    }
    arg::pointer(indices, "array_of_indices")?;
    let over = await_some(&entries)?;
    take_some(&entries, &over, outcount, indices, statuses)
}

pub(crate) unsafe fn testsome(
    count: c_int,
    requests: *mut RawHandle,
    outcount: Out<c_int>,
    indices: *mut c_int,
    statuses: StatusesOut,
) -> Done {
    outcount.set(face::UNDEFINED);
    // SAFETY: the caller's promise.
    let entries = unsafe { active(count, requests) }?;
    if entries.is_empty() {
        return Ok(());
    }
    arg::pointer(indices, "array_of_indices")?;
    let over = ended(&entries)?;
    take_some(&entries, &over, outcount, indices, statuses)
}

/// What a request has that is not in flight: its status, and whether it is that of a null or inactive one, of which the
/// error is stored, too.
type Looked = (Status, bool);

fn give_looked(status: StatusOut, (found, is_empty): Looked) {
    if is_empty { status.set_all(found) } else { status.set(found) }
}

/// How a request stands, without taking anything: `None` if it is in flight.
fn look(handle: RawHandle) -> Done<Option<Looked>> {
    let Some(object) = find(handle)? else { return Ok(Some((empty_status(), true))) };
    if !object.look().is_active() {
        return Ok(Some((empty_status(), true)));
    }
    if let Some(request) = object.look().raw() {
        let _ = raw::Request::test_some(&[request]);
    }
    if !object.look().is_over() {
        return Ok(None);
    }
    let mut state = object.state();
    Ok(Some((state.peek(), false)))
}

impl super::State {
    /// The status that it will give, once it has ended.
    fn peek(&mut self) -> Status {
        let result = match &self.work {
            Work::Nobody { status, .. } => return *status,
            Work::SendAlone(_) => return crate::p2p::status_of_nobody(),
            Work::One(request) => request.peek(),
            Work::Both(both) => both[1].peek(),
        };
        let mut ended = match result {
            Some(result) => self.outcome(result),
            None => return empty_status(),
        };
        if let Some(general) = self.general() {
            let _ = general.query(&mut ended.status);
        }
        ended.status
    }
}

pub(crate) fn request_get_status(request: RawHandle, flag: Out<c_int>, status: StatusOut) -> Done {
    let found = look(request)?;
    flag.set(c_int::from(found.is_some()));
    if let Some(found) = found {
        give_looked(status, found);
    }
    Ok(())
}

/// # Safety
/// The list has so many.
unsafe fn handles(count: c_int, requests: *const RawHandle) -> Done<Vec<RawHandle>> {
    // SAFETY: the caller's promise: nothing is written.
    let places = unsafe { places(count, requests.cast_mut()) }?;
    Ok(places.into_iter().map(HandleOut::get).collect())
}

pub(crate) unsafe fn request_get_status_all(
    count: c_int,
    requests: *const RawHandle,
    flag: Out<c_int>,
    statuses: StatusesOut,
) -> Done {
    // SAFETY: the caller's promise.
    let all = unsafe { handles(count, requests) }?;
    let found: Option<Vec<Looked>> = all.into_iter().map(look).collect::<Done<_>>()?;
    flag.set(c_int::from(found.is_some()));
    for (index, status) in found.into_iter().flatten().enumerate() {
        give_looked(statuses.at(index), status);
    }
    Ok(())
}

pub(crate) unsafe fn request_get_status_any(
    count: c_int,
    requests: *const RawHandle,
    index: Out<c_int>,
    flag: Out<c_int>,
    status: StatusOut,
) -> Done {
    index.set(face::UNDEFINED);
    flag.set(1);
    let mut any = false;
    // SAFETY: the caller's promise.
    for (at, handle) in unsafe { handles(count, requests) }?.into_iter().enumerate() {
        let Some(object) = find(handle)? else { continue };
        let is_active = object.look().is_active();
        if !is_active {
            continue;
        }
        any = true;
        if let Some((found, _)) = look(handle)? {
            index.set(number(at));
            status.set(found);
            return Ok(());
        }
    }
    match any {
        true => flag.set(0),
        false => status.set_all(empty_status()),
    }
    Ok(())
}

pub(crate) unsafe fn request_get_status_some(
    count: c_int,
    requests: *const RawHandle,
    outcount: Out<c_int>,
    indices: *mut c_int,
    statuses: StatusesOut,
) -> Done {
    let (mut any, mut over) = (false, 0);
    // SAFETY: the caller's promise.
    for (at, handle) in unsafe { handles(count, requests) }?.into_iter().enumerate() {
        let Some(object) = find(handle)? else { continue };
        let is_active = object.look().is_active();
        any |= is_active;
        if let Some((found, _)) = look(handle)?.filter(|_| is_active) {
            // SAFETY: the list of indices has as many places as the list of requests.
            unsafe {
                arg::pointer(indices, "array_of_indices")?.wrapping_add(over).write(number(at))
            };
            statuses.at(over).set(found);
            over += 1;
        }
    }
    outcount.set(if any { number(over) } else { face::UNDEFINED });
    Ok(())
}

/// What of a status programs read and set.
macro_rules! status_parts {
    ($($get:ident $set:ident $part:ident)*) => {
        $(
            pub(crate) fn $get(status: &Status, $part: Out<c_int>) -> Done {
                $part.set(status.$part);
                Ok(())
            }

            pub(crate) fn $set(status: StatusOut, $part: c_int) -> Done {
                let mut changed = status.get().ok_or_else(|| arg::null("status"))?;
                changed.$part = $part;
                status.set_all(changed);
                Ok(())
            }
        )*
    };
}

status_parts! {
    status_get_source status_set_source source
    status_get_tag status_set_tag tag
    status_get_error status_set_error error
}

pub(crate) fn status_set_cancelled(status: StatusOut, flag: c_int) -> Done {
    let mut changed = status.get().ok_or_else(|| arg::null("status"))?;
    changed.set_cancelled(flag != 0);
    status.set_all(changed);
    Ok(())
}

pub(crate) fn test_cancelled(status: &Status, flag: Out<c_int>) -> Done {
    flag.set(c_int::from(status.is_cancelled()));
    Ok(())
}
