//! Waiting for several requests, and looking at them without taking anything (MPI 4.1 §3.7.5, §3.7.6); statuses.

use super::{RequestObject, Work, empty_status, find, give_status, settle};
use crate::arg::{self, HandleOut, Out, Room, StatusOut, StatusesOut};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle, Status};
use crate::p2p::status_of_nobody;
use crate::process;
use crate::slots::Object;
use gapless::raw;
use std::ffi::c_int;

/// A request of a list: where its handle is, and the request.
struct Entry {
    index: usize,
    at: HandleOut,
    object: Object<RequestObject>,
}

/// The active ones of a list.
fn active(requests: &[HandleOut]) -> Done<Vec<Entry>> {
    let mut all = Vec::new();
    for (index, at) in requests.iter().copied().enumerate() {
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
        if let Object::Predefined(..) = self.object {
            return Some(self.wait());
        }
        let mut state = self.object.state();
        let ended = state.test()?;
        let goes = state.goes();
        drop(state);
        Some(settle(self.object.clone(), self.at, goes, ended))
    }

    /// The same, waited for.
    fn wait(&self) -> (Status, Done) {
        wait_for(self.object.clone(), self.at).unwrap_or_else(|| (empty_status(), Ok(())))
    }
}

/// Waits for a request; `None` if it is inactive.
pub(super) fn wait_for(object: Object<RequestObject>, at: HandleOut) -> Option<(Status, Done)> {
    if let Object::Predefined(..) = object {
        at.set(face::REQUEST_NULL);
        return Some((status_of_nobody(), Ok(())));
    }
    let mut state = object.state();
    let mut waited = Ok(());
    if state.shared || process::is_threaded() {
        drop(state);
        waited = object.look().work.await_end();
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
    // What is over from the start is one object: nobody locks it twice.
    let made = |entry: &Entry| matches!(entry.object, Object::Made(_));
    let looks = entries.iter().map(|entry| made(entry).then(|| entry.object.look()));
    let states: Vec<_> = looks.collect();
    let known = states.iter().enumerate().filter_map(|(at, state)| Some((at, state.as_ref()?)));
    let parts = known.flat_map(|(at, state)| {
        let active = |request: &&raw::Request| request.is_active();
        state.work.parts().iter().filter(active).map(move |request| (at, request))
    });
    let (owners, requests): (Vec<usize>, Vec<&raw::Request>) = parts.unzip();
    let mut left = vec![0; entries.len()];
    owners.iter().for_each(|at| left[*at] += 1);
    for over in raw::Request::test_some(&requests)? {
        left[owners[over]] -= 1;
    }
    Ok((0..entries.len()).filter(|at| left[*at] == 0).collect())
}

/// The same, but waits until some have, if there are any.
fn await_some(entries: &[Entry]) -> Done<Vec<usize>> {
    loop {
        let over = ended(entries)?;
        if !over.is_empty() || entries.is_empty() {
            return Ok(over);
        }
        let states: Vec<_> = entries.iter().map(|entry| entry.object.look()).collect();
        // Of both parts of an exchange, whichever is not over.
        let pending = |request: &&raw::Request| request.is_active() && request.peek().is_none();
        let requests: Vec<&raw::Request> = states
            .iter()
            .filter_map(|state| match state.work.parts() {
                [one] => Some(one),
                parts => parts.iter().find(pending),
            })
            .collect();
        raw::Request::wait_any(&requests)?;
    }
}

fn number(index: usize) -> c_int {
    c_int::try_from(index).unwrap_or(face::UNDEFINED)
}

/// Takes the first that has ended, if one has.
fn take_any(entries: &[Entry], over: &[usize], index: Out<c_int>, status: StatusOut) -> Done {
    let first = over.first().and_then(|at| entries.get(*at));
    index.set(first.map_or(face::UNDEFINED, |entry| number(entry.index)));
    match first {
        None if !entries.is_empty() => Ok(()),
        first => give_status(first.map(Entry::wait), status),
    }
}

pub(crate) fn waitany(requests: Vec<HandleOut>, index: Out<c_int>, status: StatusOut) -> Done {
    let entries = active(&requests)?;
    take_any(&entries, &await_some(&entries)?, index, status)
}

pub(crate) fn testany(
    requests: Vec<HandleOut>,
    index: Out<c_int>,
    flag: Out<c_int>,
    status: StatusOut,
) -> Done {
    let entries = active(&requests)?;
    let over = ended(&entries)?;
    flag.set(c_int::from(!over.is_empty() || entries.is_empty()));
    take_any(&entries, &over, index, status)
}

pub(crate) fn waitall(requests: Vec<HandleOut>, statuses: StatusesOut) -> Done {
    // All handles first: of a list with a wrong one, nothing is taken.
    let objects: Vec<_> = requests.iter().map(|at| find(at.get())).collect::<Done<_>>()?;
    let waited = requests.into_iter().zip(objects).map(|(at, object)| {
        let waited = object.and_then(|object| wait_for(object, at));
        waited.unwrap_or_else(|| (empty_status(), Ok(())))
    });
    give_statuses(waited.collect(), statuses)
}

/// Stores statuses in their order. If one failed, each has its error (MPI 4.1 §3.7.5).
fn give_statuses(all: Vec<(Status, Done)>, statuses: StatusesOut) -> Done {
    let failed = all.iter().any(|(_, done)| done.is_err());
    let mut first = None;
    for (index, (mut status, done)) in all.into_iter().enumerate() {
        if !failed {
            statuses.at(index).set(status);
            continue;
        }
        status.error = done.as_ref().err().map_or(face::SUCCESS, |fail| fail.code);
        statuses.at(index).set_all(status);
        first = first.or(done.err());
    }
    first.map_or(Ok(()), |fail| Err(Fail { code: face::ERR_IN_STATUS, ..fail }))
}

pub(crate) fn testall(requests: Vec<HandleOut>, flag: Out<c_int>, statuses: StatusesOut) -> Done {
    let entries = active(&requests)?;
    let over = ended(&entries)?.len() == entries.len();
    flag.set(c_int::from(over));
    if over { waitall(requests, statuses) } else { Ok(()) }
}

/// `MPI_Waitsome`, `MPI_Testsome`: takes all that have ended.
pub(crate) fn some(
    waits: bool,
    requests: Vec<HandleOut>,
    outcount: Out<c_int>,
    indices: Room<c_int>,
    statuses: StatusesOut,
) -> Done {
    outcount.set(face::UNDEFINED);
    let entries = active(&requests)?;
    if entries.is_empty() {
        return Ok(());
    }
    indices.check()?;
    let over = if waits { await_some(&entries) } else { ended(&entries) }?;
    let entries = over.iter().filter_map(|at| entries.get(*at));
    let taken = entries.filter_map(|entry| entry.test().map(|taken| (number(entry.index), taken)));
    let (numbers, all): (Vec<c_int>, Vec<_>) = taken.unzip();
    outcount.set(arg::int(numbers.len()));
    indices.give(&numbers)?;
    give_statuses(all, statuses)
}

/// How a request stands.
enum Stands {
    /// There is none, or it is inactive.
    Empty,
    InFlight,
    /// The status that it will give.
    Over(Status),
}

impl Stands {
    fn is_over(&self) -> bool {
        !matches!(self, Stands::InFlight)
    }

    fn give(self, status: StatusOut) {
        match self {
            Stands::Empty => status.set_all(empty_status()),
            Stands::InFlight => {}
            Stands::Over(found) => status.set(found),
        }
    }
}

/// How a request stands, without taking anything.
fn look(handle: RawHandle) -> Done<Stands> {
    let Some(object) = find(handle)? else { return Ok(Stands::Empty) };
    let state = object.look();
    if !state.is_active() {
        return Ok(Stands::Empty);
    }
    if let Some(request) = state.raw() {
        let _ = raw::Request::test_some(&[request]);
    }
    if !state.is_over() {
        return Ok(Stands::InFlight);
    }
    let result = match &state.work {
        Work::Nobody { .. } | Work::SendAlone(_) => return Ok(Stands::Over(status_of_nobody())),
        Work::One(request) => request.peek(),
        Work::Both(both) => both[1].peek(),
    };
    let mut status = result.map_or_else(empty_status, |it| super::State::outcome(it).status);
    let general = state.general().map(super::general::General::functions);
    // The program's function may call MPI on this request: nothing is locked.
    drop(state);
    if let Some(general) = general {
        let _ = general.query(&mut status);
    }
    Ok(Stands::Over(status))
}

pub(crate) fn request_get_status(request: RawHandle, flag: Out<c_int>, status: StatusOut) -> Done {
    let found = look(request)?;
    flag.set(c_int::from(found.is_over()));
    found.give(status);
    Ok(())
}

pub(crate) fn request_get_status_all(
    requests: &[RawHandle],
    flag: Out<c_int>,
    statuses: StatusesOut,
) -> Done {
    let all = requests.iter().map(|handle| look(*handle)).collect::<Done<Vec<_>>>()?;
    let over = all.iter().all(Stands::is_over);
    flag.set(c_int::from(over));
    for (index, found) in all.into_iter().enumerate().filter(|_| over) {
        found.give(statuses.at(index));
    }
    Ok(())
}

/// Those that are over, with their places in the list, at most so many; whether any is active.
fn over(requests: &[RawHandle], most: usize) -> Done<(Vec<(c_int, Status)>, bool)> {
    let (mut all, mut any) = (Vec::new(), false);
    for (index, handle) in requests.iter().enumerate() {
        match look(*handle)? {
            Stands::Empty => continue,
            Stands::InFlight => {}
            Stands::Over(status) => all.push((number(index), status)),
        }
        any = true;
        if all.len() == most {
            break;
        }
    }
    Ok((all, any))
}

pub(crate) fn request_get_status_any(
    requests: &[RawHandle],
    index: Out<c_int>,
    flag: Out<c_int>,
    status: StatusOut,
) -> Done {
    let (found, any) = over(requests, 1)?;
    index.set(found.first().map_or(face::UNDEFINED, |(index, _)| *index));
    flag.set(c_int::from(!found.is_empty() || !any));
    match found.first() {
        Some((_, found)) => status.set(*found),
        None if any => {}
        None => status.set_all(empty_status()),
    }
    Ok(())
}

pub(crate) fn request_get_status_some(
    requests: &[RawHandle],
    outcount: Out<c_int>,
    indices: Room<c_int>,
    statuses: StatusesOut,
) -> Done {
    let (found, any) = over(requests, usize::MAX)?;
    for (index, (_, status)) in found.iter().enumerate() {
        statuses.at(index).set(*status);
    }
    outcount.set(if any { arg::int(found.len()) } else { face::UNDEFINED });
    indices.give(&found.into_iter().map(|(index, _)| index).collect::<Vec<_>>())
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
