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
//! transport allows. After a failure another protocol carries all of the message.

use super::{Cx, Heard, Kind, Opened, Rendezvous, Step, unexpected};
use crate::buffer::Buffer;
use crate::choose::{Excluded, Model, Situation};
use crate::rndv::protocol::Protocol;
use crate::wire::Rts;
use gapless_bml::{Extent, Rank, RdmaError, RemoteKey, Token, TokenSpace};
use gapless_dtype::{Convertor, Layout, Run};
use gapless_engine::EngineError;
use gapless_mem::Region;

pub(super) const KIND: Kind = Kind {
    name: "single-copy",
    wire: 4,
    wants_layout: true,
    exclude: |s, _| match (s.single_copy, s.devices) {
        (None, _) => Some(Excluded::NoSingleCopy),
        (_, Some(_)) => Some(Excluded::DeviceMemory),
        _ => (s.layout_fetch_bytes > s.layout_fetch_max).then_some(Excluded::LayoutTooLong),
    },
    cost: |s, tuning| Model::new(s, tuning).single_copy(),
    open_recv,
    ..Kind::NONE
};

/// Pieces of one operation at most, whatever the transport would take.
const PIECES_MAX: usize = 1024;

/// The progress of the reading.
#[derive(Debug)]
struct Getting {
    position: u64,
    /// Where the operation in flight ends; `None` if none is.
    batch_end: Option<u64>,
    /// The sender is lost: nothing more is read.
    lost: bool,
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
        far: (&Rts, Option<&Layout>),
        buffer: &Buffer,
        position: u64,
        bytes: u64,
    ) -> Result<u64, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut local = buffer.typed().convertor().map_err(|error| text(&error))?;
        local.seek(position).map_err(|error| text(&error))?;
        let (mut count, mut taken) = local.iov(&mut self.local_runs, bytes);
        let remote_taken = self.list_remote(far, position, taken)?;
        if remote_taken < taken {
            // The remote side ran out of pieces first: fewer bytes need no more pieces here.
            local.seek(position).map_err(|error| text(&error))?;
            (count, taken) = local.iov(&mut self.local_runs, remote_taken);
        }
        if taken == 0 || taken != remote_taken {
            return Err(format!("{taken} local bytes, but {remote_taken} remote bytes"));
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
        (rts, layout): (&Rts, Option<&Layout>),
        position: u64,
        bytes: u64,
    ) -> Result<u64, String> {
        if rts.blocks == 1 {
            self.remote.push(Extent { offset: position, len: bytes });
            return Ok(bytes);
        }
        let layout = layout.ok_or("the layout is not known")?;
        let mut remote = Convertor::new(layout, rts.count).map_err(|error| error.to_string())?;
        remote.seek(position).map_err(|error| error.to_string())?;
        let (count, taken) = remote.iov(&mut self.remote_runs, bytes);
        for run in &self.remote_runs[..count] {
            // The key starts at displacement `low`.
            let offset = i128::from(run.displacement) - i128::from(rts.low);
            let offset = u64::try_from(offset).map_err(|error| error.to_string())?;
            let end = offset.checked_add(run.len).filter(|end| *end <= rts.span);
            end.ok_or("a run outside the offer's span")?;
            self.remote.push(Extent { offset, len: run.len });
        }
        Ok(taken)
    }
}

/// Starts to read the sender's memory.
fn open_recv(cx: &mut Cx<'_>, _: &Situation) -> Opened {
    let mut getting = Getting { position: 0, batch_end: None, lost: false };
    match getting.next(cx) {
        refused @ Step::Refused(_) => (None, refused),
        step => (Some(Box::new(getting)), step),
    }
}

impl Getting {
    /// Starts the next operation.
    fn next(&mut self, cx: &mut Cx<'_>) -> Step {
        match self.try_get(cx) {
            Ok(()) => Step::Going,
            Err(RdmaError::Full) => Step::Again,
            Err(error) => Step::Refused(error.to_string()),
        }
    }

    fn try_get(&mut self, cx: &mut Cx<'_>) -> Result<(), RdmaError> {
        let unavailable = |reason: &str| RdmaError::Unavailable { reason: reason.to_owned() };
        let (reply, room) = cx.receipt();
        let batch = cx.config.tuning.single_copy_batch_bytes.max(1);
        let key: RemoteKey = cx.rts.rdma.ok_or_else(|| unavailable("no key"))?;
        let peer = Rank(cx.peer);
        let (_, rdma) = cx.bml.rdma(peer).ok_or_else(|| unavailable("no rail reads memory"))?;
        let pieces = rdma.rdma_limits().max_pieces.clamp(1, PIECES_MAX);
        cx.scratch.prepare(pieces);
        let layout = cx.at_receiver.as_ref().and_then(|at| at.layout);
        let bytes = batch.min(room - self.position);
        let taken = cx
            .scratch
            .list((cx.rts, layout), cx.buffer, self.position, bytes)
            .map_err(|reason| RdmaError::Unavailable { reason })?;
        let token: Token =
            TokenSpace::REST.token(reply).ok_or_else(|| unavailable("2^56 receives"))?;
        let remote = (&key, &cx.scratch.remote[..]);
        cx.buffer.get(cx.bml, peer, &cx.scratch.local, remote, token)?;
        *cx.gets += 1;
        self.batch_end = Some(self.position + taken);
        Ok(())
    }
}

impl Rendezvous for Getting {
    fn heard(&mut self, _: &mut Cx<'_>, heard: Heard<'_>) -> Step {
        unexpected(&heard.message)
    }

    /// The transport has room again, perhaps.
    fn again(&mut self, cx: &mut Cx<'_>) -> Step {
        if self.batch_end.is_some() { Step::Going } else { self.next(cx) }
    }

    /// An operation has ended.
    fn landed(&mut self, cx: &mut Cx<'_>, _: u64, result: Result<(), EngineError>) -> Step {
        let Some(end) = self.batch_end.take().filter(|_| !self.lost) else { return Step::Going };
        let (_, room) = cx.receipt();
        match result {
            Ok(()) if end == room => {
                cx.received(Protocol::SingleCopy);
                Step::Done(Protocol::SingleCopy)
            }
            Ok(()) => {
                self.position = end;
                self.next(cx)
            }
            Err(error) => Step::Refused(error.to_string()),
        }
    }

    fn lost(&mut self, _: &mut Cx<'_>) -> Step {
        self.lost = true;
        Step::Refused("the sender is lost".to_owned())
    }
}
