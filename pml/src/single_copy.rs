//! Single copy: the receiver reads the sender's memory through the transport.
//!
//! ```text
//! sender                        receiver
//!   | RTS(rdma key, layout) ---> | get, get, ... at most max_pieces runs each
//!   | <------------------ FIN -- | complete
//!   | complete                   |
//! ```
//!
//! Both sides' runs of bytes come from their layouts' convertors; one operation takes as many as the
//! transport allows. After a refusal, the rest comes through the pipeline.

use crate::buffer::Buffer;
use crate::choose::Protocol;
use crate::core::Core;
use crate::rendezvous::{Incoming, Stage};
use crate::request::RequestId;
use gapless_bml::{Bml, Extent, LinkError, Rank, RdmaError, RemoteKey, Token, TokenSpace};
use gapless_dtype::{Convertor, Run};
use gapless_mem::Region;

/// Pieces of one operation at most, whatever the transport would take.
const PIECES_MAX: usize = 1024;

/// How far the reading is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Getting {
    position: u64,
    /// Where the operation under way ends; `None` if none is.
    batch_end: Option<u64>,
}

/// Lists that every operation fills anew.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    local_runs: Vec<Run>,
    remote_runs: Vec<Run>,
    local: Vec<Region>,
    remote: Vec<Extent>,
}

impl Scratch {
    fn prepare(&mut self, pieces: usize) {
        self.local_runs.resize(pieces, Run::default());
        self.remote_runs.resize(pieces, Run::default());
        self.local.clear();
        self.remote.clear();
    }

    /// Lists the pieces from packed byte `position` on, up to `bytes`; gives how many bytes.
    fn list(
        &mut self,
        incoming: &Incoming,
        buffer: &Buffer,
        position: u64,
        bytes: u64,
    ) -> Result<u64, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut local = buffer.typed().convertor().map_err(|error| text(&error))?;
        local.seek(position).map_err(|error| text(&error))?;
        let (mut count, mut taken) = local.iov(&mut self.local_runs, bytes);
        let remote_taken = self.list_remote(incoming, position, taken)?;
        if remote_taken < taken {
            // The remote side ran out of pieces first: fewer bytes need no more pieces here.
            local.seek(position).map_err(|error| text(&error))?;
            (count, taken) = local.iov(&mut self.local_runs, remote_taken);
        }
        if taken == 0 || taken != remote_taken {
            return Err(format!("{taken} local bytes against {remote_taken} remote ones"));
        }
        let typed = buffer.typed();
        for run in &self.local_runs[..count] {
            let start = i128::from(typed.origin()) + i128::from(run.displacement);
            let start = u64::try_from(start).map_err(|error| text(&error))?;
            self.local.push(typed.region().sub(start, run.len).map_err(|error| text(&error))?);
        }
        Ok(taken)
    }

    fn list_remote(
        &mut self,
        incoming: &Incoming,
        position: u64,
        bytes: u64,
    ) -> Result<u64, String> {
        if incoming.gapless() {
            self.remote.push(Extent { offset: position, len: bytes });
            return Ok(bytes);
        }
        let layout = incoming.layout.as_ref().ok_or("the layout is not known")?;
        let mut remote =
            Convertor::new(layout, incoming.rts.count).map_err(|error| error.to_string())?;
        remote.seek(position).map_err(|error| error.to_string())?;
        let (count, taken) = remote.iov(&mut self.remote_runs, bytes);
        for run in &self.remote_runs[..count] {
            // The key starts at displacement `low`.
            let offset = i128::from(run.displacement) - i128::from(incoming.rts.low);
            let offset = u64::try_from(offset).map_err(|error| error.to_string())?;
            let end = offset.checked_add(run.len).filter(|end| *end <= incoming.rts.span);
            end.ok_or("a run outside the offer's span")?;
            self.remote.push(Extent { offset, len: run.len });
        }
        Ok(taken)
    }
}

impl Core {
    /// Starts to read the sender's memory.
    pub(crate) fn start_getting(&mut self, bml: &mut Bml, id: RequestId) {
        if let Some((incoming, _)) = self.incoming(id) {
            incoming.stage = Stage::Getting(Getting { position: 0, batch_end: None });
        }
        self.get_next(bml, id);
    }

    /// Starts the next operation.
    fn get_next(&mut self, bml: &mut Bml, id: RequestId) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let outcome = self.try_get(bml, id, &mut scratch);
        self.scratch = scratch;
        match outcome {
            Ok(()) => {}
            Err(RdmaError::Full) => self.retries.push(id),
            Err(error) => self.give_up_getting(bml, id, &error.to_string()),
        }
    }

    fn try_get(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        scratch: &mut Scratch,
    ) -> Result<(), RdmaError> {
        let unavailable = |reason: &str| RdmaError::Unavailable { reason: reason.to_owned() };
        let batch = self.config.tuning.single_copy_batch_bytes.max(1);
        let Some((incoming, buffer)) = self.incoming(id) else { return Ok(()) };
        let Stage::Getting(getting) = incoming.stage else { return Ok(()) };
        let key: RemoteKey = incoming.rts.rdma.ok_or_else(|| unavailable("no key"))?;
        let from = Rank(incoming.from);
        let (_, rdma) = bml.rdma(from).ok_or_else(|| unavailable("no rail reads memory"))?;
        let pieces = rdma.rdma_limits().max_pieces.clamp(1, PIECES_MAX);
        scratch.prepare(pieces);
        let bytes = batch.min(incoming.room - getting.position);
        let taken = scratch
            .list(incoming, buffer, getting.position, bytes)
            .map_err(|reason| RdmaError::Unavailable { reason })?;
        let token: Token =
            TokenSpace::REST.token(incoming.reply).ok_or_else(|| unavailable("2^56 receives"))?;
        buffer.get(bml, from, &scratch.local, (&key, &scratch.remote), token)?;
        let batch_end = Some(getting.position + taken);
        incoming.stage = Stage::Getting(Getting { batch_end, ..getting });
        Ok(())
    }

    /// The transport has room again, perhaps; gives how many operations were tried.
    pub(crate) fn retry(&mut self, bml: &mut Bml) -> usize {
        let waiting = std::mem::take(&mut self.retries);
        let before = waiting.len();
        for id in waiting {
            self.get_next(bml, id);
        }
        before - self.retries.len().min(before)
    }

    /// An operation has ended.
    pub(crate) fn got(&mut self, bml: &mut Bml, reply: u64, result: Result<(), LinkError>) {
        let Some(&id) = self.serials.get(&reply) else { return };
        let Some((incoming, _)) = self.incoming(id) else { return };
        let Stage::Getting(Getting { batch_end: Some(end), position }) = incoming.stage else {
            return;
        };
        let position = if result.is_ok() { end } else { position };
        incoming.stage = Stage::Getting(Getting { position, batch_end: None });
        if incoming.is_lost() {
            return self.finish_incoming(id);
        }
        match result {
            Ok(()) if end == incoming.room => self.finish_and_tell(bml, id),
            Ok(()) => self.get_next(bml, id),
            Err(error) => self.give_up_getting(bml, id, &error.to_string()),
        }
    }

    /// The rest comes through the pipeline.
    fn give_up_getting(&mut self, bml: &mut Bml, id: RequestId, why: &str) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let Stage::Getting(Getting { position, .. }) = incoming.stage else { return };
        if position == 0 {
            return self.refuse(bml, id, Protocol::SingleCopy, why);
        }
        tracing::debug!(peer = incoming.from, why, position, "single copy ends early");
        self.grant(bml, id, position);
    }
}

impl Getting {
    /// Whether the transport is working on the buffer.
    pub(crate) fn busy(&self) -> bool {
        self.batch_end.is_some()
    }
}
