//! The table of requests: operations under way, and the results of those that have ended.

use crate::choose::Protocol;
use crate::counters::Counters;
use crate::error::PmlError;
use crate::recv::Recv;
use crate::send::Send;
use crate::short::Expected;
use std::task::Waker;

/// Names an operation until its result is collected; then the name is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    index: u32,
    generation: u32,
}

impl RequestId {
    /// Its place in the table.
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}

/// How an operation ended, or what a probe saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The other end's rank in the communicator.
    pub source: u32,
    /// The message's tag.
    pub tag: i32,
    /// Packed bytes received (sent).
    pub bytes: u64,
    /// How the message was carried. A probe sees `Eager` or, for a rendezvous whose protocol is
    /// not chosen yet, `Pipeline`.
    pub protocol: Protocol,
}

/// What a request is doing.
#[derive(Debug)]
pub(crate) enum Work {
    /// Boxed: most sends end at once and never get here.
    Send(Box<Send>),
    Recv(Recv),
    /// An eager send whose message has left: it has ended well, and can be asked for back.
    Left(Left),
    /// An eager send that was asked for back, and waits for the answer.
    Recalled(Recalled),
    /// It has ended; the result waits to be collected.
    Done(Result<Status, Box<PmlError>>),
    /// Not in use.
    Vacant,
}

/// An eager message on its way, or there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) status: Status,
    pub(crate) peer: u32,
    /// Its number among the messages to that peer.
    pub(crate) sequence: u32,
}

/// An eager message whose sender wants it back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recalled {
    /// The result, if it is too late.
    pub(crate) status: Status,
    pub(crate) peer: u32,
    /// What the answer will name.
    pub(crate) serial: u64,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    /// Nobody will ask for the result.
    released: bool,
    /// Who is to be told of the end.
    waker: Option<Waker>,
    work: Work,
}

/// All requests of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Who is to be told now: their requests have ended.
    woken: Vec<Waker>,
    /// How many have ended well.
    pub(crate) ended: Counters,
}

impl Requests {
    /// Adds a request.
    pub(crate) fn insert(&mut self, work: Work) -> RequestId {
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            // What was there is `Vacant`: there is nothing to drop.
            std::mem::forget(std::mem::replace(&mut entry.work, work));
            entry.released = false;
            return RequestId { index, generation: entry.generation };
        }
        let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 requests");
        self.entries.push(Entry { generation: 0, released: false, waker: None, work });
        RequestId { index, generation: 0 }
    }

    /// Adds an eager send whose message has left.
    #[inline]
    pub(crate) fn insert_left(&mut self, left: Left) -> RequestId {
        let Some(index) = self.free.pop() else { return self.insert(Work::Left(left)) };
        let entry = &mut self.entries[index as usize];
        entry.work = Work::Left(left);
        entry.released = false;
        RequestId { index, generation: entry.generation }
    }

    fn entry(&self, id: RequestId) -> Option<&Entry> {
        let entry = self.entries.get(id.index as usize)?;
        (entry.generation == id.generation).then_some(entry)
    }

    /// The name of the request at a place of the table.
    pub(crate) fn id_at(&self, index: u32) -> Option<RequestId> {
        let entry = self.entries.get(index as usize)?;
        Some(RequestId { index, generation: entry.generation })
    }

    /// A send that is under way.
    pub(crate) fn send_mut(&mut self, id: RequestId) -> Option<&mut Send> {
        let entry = self.entries.get_mut(id.index as usize)?;
        match &mut entry.work {
            Work::Send(send) if entry.generation == id.generation => Some(send),
            _ => None,
        }
    }

    /// A receive that is under way.
    pub(crate) fn recv_mut(&mut self, id: RequestId) -> Option<&mut Recv> {
        let entry = self.entries.get_mut(id.index as usize)?;
        match &mut entry.work {
            Work::Recv(recv) if entry.generation == id.generation => Some(recv),
            _ => None,
        }
    }

    /// The receive at a place of the table, if it is one that says what it expects.
    #[inline]
    pub(crate) fn expecting(&self, index: u32) -> Option<(&Recv, Expected)> {
        match &self.entries.get(index as usize)?.work {
            Work::Recv(recv) => Some((recv, recv.expected?)),
            _ => None,
        }
    }

    /// Ends the request at a place of the table well.
    #[inline]
    pub(crate) fn finish_at(&mut self, index: u32, status: Status) {
        self.ended.ended(status.protocol, status.bytes);
        let Some(entry) = self.entries.get_mut(index as usize) else { return };
        if entry.waker.is_none() && !entry.released {
            entry.work = Work::Done(Ok(status));
            return;
        }
        let id = RequestId { index, generation: entry.generation };
        self.end(id, Work::Done(Ok(status)));
    }

    /// Ends a request. Its result waits to be collected, or is dropped if nobody will ask.
    pub(crate) fn finish(&mut self, id: RequestId, result: Result<Status, PmlError>) {
        if self.entry(id).is_some()
            && let Ok(status) = &result
        {
            self.ended.ended(status.protocol, status.bytes);
        }
        self.end(id, Work::Done(result.map_err(Box::new)));
    }

    /// Ends an eager send whose message has left.
    pub(crate) fn finish_left(&mut self, id: RequestId, left: Left) {
        self.ended.ended(left.status.protocol, left.status.bytes);
        self.end(id, Work::Left(left));
    }

    /// Ends a request that was recalled: that of a message which was counted when it left.
    pub(crate) fn finish_recalled(&mut self, id: RequestId, result: Result<Status, PmlError>) {
        self.end(id, Work::Done(result.map_err(Box::new)));
    }

    fn end(&mut self, id: RequestId, result: Work) {
        let Some(entry) = self.entries.get_mut(id.index as usize) else { return };
        if entry.generation != id.generation {
            return;
        }
        if entry.waker.is_some() {
            self.woken.extend(entry.waker.take());
        }
        if entry.released {
            self.vacate(id.index);
        } else {
            entry.work = result;
        }
    }

    /// The message of an eager send that has ended, and whose result was not collected.
    pub(crate) fn left(&self, id: RequestId) -> Option<Left> {
        match self.entry(id)?.work {
            Work::Left(left) => Some(left),
            _ => None,
        }
    }

    /// Has an eager send that has ended wait for what becomes of its message.
    pub(crate) fn recall(&mut self, id: RequestId, recalled: Recalled) {
        self.entries[id.index as usize].work = Work::Recalled(recalled);
    }

    /// What a send that was asked for back waits for.
    pub(crate) fn recalled(&self, id: RequestId) -> Option<Recalled> {
        match self.entry(id)?.work {
            Work::Recalled(recalled) => Some(recalled),
            _ => None,
        }
    }

    /// Has `waker` told when a request ends, in place of whoever was to be; `false` if it has ended.
    pub(crate) fn notify(&mut self, id: RequestId, waker: Waker) -> Result<bool, PmlError> {
        if self.is_done(id)? {
            return Ok(false);
        }
        self.entries[id.index as usize].waker = Some(waker);
        Ok(true)
    }

    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Those to be told now; with `all`, also those whose requests go on.
    pub(crate) fn take_woken(&mut self, all: bool) -> Vec<Waker> {
        if all {
            self.woken.extend(self.entries.iter_mut().filter_map(|entry| entry.waker.take()));
        }
        std::mem::take(&mut self.woken)
    }

    fn vacate(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.work = Work::Vacant;
        entry.waker = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index);
    }

    /// Whether a request has ended.
    ///
    /// # Errors
    /// There is no such request.
    pub(crate) fn is_done(&self, id: RequestId) -> Result<bool, PmlError> {
        match self.entry(id) {
            Some(entry) if entry.released => Err(PmlError::NoSuchRequest),
            Some(Entry { work: Work::Vacant, .. }) | None => Err(PmlError::NoSuchRequest),
            Some(entry) => Ok(matches!(entry.work, Work::Done(_) | Work::Left(_))),
        }
    }

    /// Takes the result of a request that has ended; `None` while it is under way.
    #[inline]
    pub(crate) fn collect(&mut self, id: RequestId) -> Result<Option<Status>, PmlError> {
        let entry = self.entries.get_mut(id.index as usize).ok_or(PmlError::NoSuchRequest)?;
        if entry.generation != id.generation || entry.released {
            return Err(PmlError::NoSuchRequest);
        }
        match &entry.work {
            Work::Done(Ok(status)) | Work::Left(Left { status, .. }) => {
                let status = *status;
                // A status has nothing to drop.
                std::mem::forget(std::mem::replace(&mut entry.work, Work::Vacant));
                entry.generation = entry.generation.wrapping_add(1);
                self.free.push(id.index);
                Ok(Some(status))
            }
            Work::Send(_) | Work::Recv(_) | Work::Recalled(_) => Ok(None),
            Work::Done(Err(_)) | Work::Vacant => self.collect_failure(id.index),
        }
    }

    #[cold]
    fn collect_failure(&mut self, index: u32) -> Result<Option<Status>, PmlError> {
        let work = std::mem::replace(&mut self.entries[index as usize].work, Work::Vacant);
        let Work::Done(Err(error)) = work else { return Err(PmlError::NoSuchRequest) };
        self.vacate(index);
        Err(*error)
    }

    /// Ends a send well for whoever asks, while its message goes on by another name, of which nobody will ask;
    /// `None` where nobody asks anyway. It is counted when the message ends.
    pub(crate) fn part(&mut self, id: RequestId, status: Status) -> Option<RequestId> {
        let entry = self.entries.get_mut(id.index as usize)?;
        let sends = matches!(entry.work, Work::Send(_));
        if entry.generation != id.generation || entry.released || !sends {
            return None;
        }
        let send = std::mem::replace(&mut entry.work, Work::Done(Ok(status)));
        self.woken.extend(entry.waker.take());
        let rest = self.insert(send);
        self.entries[rest.index as usize].released = true;
        Some(rest)
    }

    /// Nobody will ask for the result any more. The operation goes on.
    pub(crate) fn release(&mut self, id: RequestId) -> Result<(), PmlError> {
        if self.is_done(id)? {
            self.vacate(id.index);
        } else {
            self.entries[id.index as usize].released = true;
        }
        Ok(())
    }

    /// All operations under way, for a peer's death.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = (RequestId, &Work)> {
        (0u32..).zip(&self.entries).filter_map(|(index, entry)| match entry.work {
            Work::Send(_) | Work::Recv(_) | Work::Recalled(_) => {
                Some((RequestId { index, generation: entry.generation }, &entry.work))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(bytes: u64) -> Status {
        Status { source: 0, tag: 0, bytes, protocol: Protocol::Eager }
    }

    #[test]
    fn a_name_is_void_once_its_result_was_collected() {
        let mut requests = Requests::default();
        let first = requests.insert(Work::Done(Ok(status(1))));
        assert_eq!(requests.collect(first), Ok(Some(status(1))));
        assert_eq!(requests.collect(first), Err(PmlError::NoSuchRequest));
        let second = requests.insert(Work::Done(Ok(status(2))));
        assert_eq!(second.index(), first.index());
        assert_eq!(requests.is_done(first), Err(PmlError::NoSuchRequest));
        assert_eq!(requests.collect(second), Ok(Some(status(2))));
    }

    #[test]
    fn a_released_request_leaves_no_entry_behind() {
        let mut requests = Requests::default();
        let id = requests.insert(Work::Done(Err(Box::new(PmlError::Cancelled))));
        requests.release(id).unwrap();
        assert_eq!(requests.release(id), Err(PmlError::NoSuchRequest));
        assert_eq!(requests.free.len(), 1);
    }
}
