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
//!
//! Either buffer may be a device's, if the adapter reaches that by itself (GPUDirect, `gpudirect.rs`). The sender then
//! registers its buffer if it expects to be read: what it predicts with the receiver's buffer like its own. The transport
//! settles what it has written into a device's memory before it tells the end of a read.

use super::{Cx, Heard, Opened, ProtocolKind, RndvEnd, RndvLink, RndvStep, unexpected};
use crate::buffer::{Buffer, HeldMemory, Listed, OneSidedRead, RegionList};
use crate::cost::{Excluded, Model, Situation};
use crate::links::WireLayout;
use crate::protocol::Protocol;
use crate::wire::Rts;
use gapless_bml::{Extent, RdmaError, RemoteKey, Token, TokenSpace};
use gapless_dtype::Run;
use gapless_engine::EngineError;

pub(super) const KIND: ProtocolKind = ProtocolKind {
    wants_layout: true,
    exclude: |s, _| match (s.single_copy, s.devices) {
        (None, _) => Some(Excluded::NoSingleCopy),
        (Some(costs), Some(_)) if !costs.devices => Some(Excluded::DeviceMemory),
        _ => (s.layout_fetch_bytes > s.layout_fetch_max).then_some(Excluded::LayoutTooLong),
    },
    cost: |model, _| model.by_ends(Model::single_copy, Model::direct_read),
    open_recv,
    ..ProtocolKind::NONE
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
    local: RegionList,
    remote: ExtentList,
}

#[derive(Debug, Default)]
struct ExtentList {
    runs: Vec<Run>,
    extents: Vec<Extent>,
}

impl Scratch {
    /// Lists at most `pieces` pieces of either end from packed byte `position` on, up to `bytes`.
    fn list<'b>(
        &'b mut self,
        far: (&Rts, Option<&WireLayout>),
        buffer: &'b Buffer,
        (position, bytes): (u64, u64),
        pieces: usize,
    ) -> Result<(Listed<'b>, &'b [Extent]), String> {
        let Scratch { local, remote } = self;
        local.resize(pieces);
        let mut there = remote.list(far, (position, bytes), pieces)?;
        let local = buffer.list(local, position, there).map_err(|error| error.to_string())?;
        let here = local.bytes();
        if here < there {
            // This side ran out of pieces first: fewer bytes need no more pieces there.
            there = remote.list(far, (position, here), pieces)?;
        }
        if here == 0 || here != there {
            return Err(format!("{here} local bytes, but {there} remote bytes"));
        }
        Ok((local, &remote.extents))
    }

    /// Reads `len` bytes from `at` on of a buffer without gaps.
    pub(crate) fn get(
        &mut self,
        link: &mut RndvLink<'_>,
        buffer: &Buffer,
        (at, len): (u64, u64),
        from: (&RemoteKey, &[Extent]),
        done: Token,
        read: &mut OneSidedRead,
    ) -> Result<(), RdmaError> {
        self.local.resize(1);
        let unavailable = |error: EngineError| RdmaError::Unavailable { reason: error.to_string() };
        let into = buffer.list(&mut self.local, at, len).map_err(unavailable)?;
        link.get(&into, from, done, read)
    }
}

impl ExtentList {
    /// Lists pieces of the sender's memory; gives how many bytes they have.
    fn list(
        &mut self,
        (rts, layout): (&Rts, Option<&WireLayout>),
        (position, bytes): (u64, u64),
        pieces: usize,
    ) -> Result<u64, String> {
        self.runs.resize(pieces, Run::default());
        self.extents.clear();
        if rts.blocks == 1 {
            self.extents.push(Extent { offset: position, len: bytes });
            return Ok(bytes);
        }
        let layout = layout.ok_or("the layout is not known")?;
        let mut remote = layout.convertor(rts.count).map_err(|error| error.to_string())?;
        remote.seek(position).map_err(|error| error.to_string())?;
        let (count, taken) = remote.iov(&mut self.runs, bytes);
        for run in &self.runs[..count] {
            // The key starts at displacement `low`.
            let offset = i128::from(run.displacement) - i128::from(rts.low);
            let offset = u64::try_from(offset).map_err(|error| error.to_string())?;
            let end = offset.checked_add(run.len).filter(|end| *end <= rts.span);
            end.ok_or("a run outside the offer's span")?;
            self.extents.push(Extent { offset, len: run.len });
        }
        Ok(taken)
    }
}

/// Starts to read the sender's memory.
fn open_recv(cx: &mut Cx<'_>, _: Protocol, _: &Situation) -> Opened {
    let mut getting = Getting { position: 0, batch_end: None, lost: false };
    Opened::after(getting.next(cx), getting)
}

impl Getting {
    /// Starts the next operation.
    fn next(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        match self.try_get(cx) {
            Ok(()) => RndvStep::Going,
            Err(RdmaError::Full) => RndvStep::Again,
            Err(error) => {
                cx.refusals.not_started(cx.buffer.typed().space(), &error);
                RndvStep::Refused(error.to_string())
            }
        }
    }

    fn try_get(&mut self, cx: &mut Cx<'_>) -> Result<(), RdmaError> {
        let unavailable = |reason: &str| RdmaError::Unavailable { reason: reason.to_owned() };
        let (reply, room) = cx.receipt();
        let batch = cx.config.tuning.single_copy_batch_bytes.max(1);
        let key: RemoteKey = cx.rts.rdma.ok_or_else(|| unavailable("no key"))?;
        let pieces = cx.link.pieces_max().ok_or_else(|| unavailable("no rail reads memory"))?;
        let pieces = pieces.clamp(1, PIECES_MAX);
        let layout = cx.at_receiver.as_ref().and_then(|at| at.layout);
        let bytes = batch.min(room - self.position);
        let (local, remote) = cx
            .scratch
            .list((cx.rts, layout), cx.buffer, (self.position, bytes), pieces)
            .map_err(|reason| RdmaError::Unavailable { reason })?;
        let token: Token =
            TokenSpace::REST.token(reply).ok_or_else(|| unavailable("2^56 receives"))?;
        cx.link.get(&local, (&key, remote), token, cx.read)?;
        self.batch_end = Some(self.position + local.bytes());
        Ok(())
    }
}

impl RndvEnd for Getting {
    fn heard(&mut self, _: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep {
        unexpected(&heard.message)
    }

    /// The transport has room again, perhaps.
    fn again(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        if self.batch_end.is_some() { RndvStep::Going } else { self.next(cx) }
    }

    /// An operation has ended.
    fn landed(
        &mut self,
        cx: &mut Cx<'_>,
        _: u64,
        result: Result<HeldMemory, EngineError>,
    ) -> RndvStep {
        let Some(end) = self.batch_end.take().filter(|_| !self.lost) else {
            return RndvStep::Going;
        };
        let (_, room) = cx.receipt();
        match result {
            Ok(_) if end == room => {
                cx.refusals.taken(cx.buffer.typed().space());
                cx.received(Protocol::SingleCopy);
                RndvStep::Done(Protocol::SingleCopy)
            }
            Ok(_) => {
                self.position = end;
                self.next(cx)
            }
            Err(error) => RndvStep::Refused(error.to_string()),
        }
    }

    fn lost(&mut self, _: &mut Cx<'_>) -> RndvStep {
        self.lost = true;
        RndvStep::Refused("the sender is lost".to_owned())
    }
}
