//! What requests do: sends and receives in flight, and the stages that they go through.

use crate::buffer::Buffer;
use crate::digests::Digests;
use crate::drive::buffered::Copied;
use crate::error::{Failure, PmlError};
use crate::matching::PostedPlace;
use crate::protocol::Protocol;
use crate::requests::{PostedRecv, Requests};
use crate::rndv::incoming::Incoming;
use crate::rndv::offered::Offered;
use crate::status::{RequestId, Status};
use crate::wire::{Envelope, Verdict};
use gapless_dtype::SignatureError;

/// What a request does that is not inline.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Boxed: most sends end at once and never get here.
    Send(Box<Send>),
    Recv(Recv),
    /// An eager send that was cancelled, and waits for the answer.
    EagerCancel(EagerCancel),
}

/// An eager message that its sender cancels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EagerCancel {
    /// The result, if it is too late.
    pub(crate) status: Status,
    pub(crate) peer: u32,
    /// What the answer will name.
    pub(crate) serial: u64,
}

/// A send in flight.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) buffer: Buffer,
    pub(crate) to: To,
    /// Its sequence number is given when it leaves.
    pub(crate) envelope: Envelope,
    /// The memory of `buffer`, where that is a copy of ours.
    pub(crate) _copied: Option<Copied>,
    pub(crate) stage: SendStage,
}

/// Whom a send is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) peer: u32,
    /// Its rank in the communicator.
    pub(crate) rank: u32,
    /// The communicator's identifier here.
    pub(crate) comm: u32,
}

/// What a send is waiting for.
#[derive(Debug)]
pub(crate) enum SendStage {
    /// Eager: room in the transport, or its engine. The serial is that of a synchronous one, else 0.
    Eager { serial: u64 },
    /// Synchronous and eager: it has left; the receive.
    Unanswered { serial: u64 },
    /// Offered: the receiver's answer, or the end of the chosen protocol.
    Rendezvous(Box<Offered>),
    /// It has ended with this result, but engines still read the buffer.
    Draining { packing: u32, result: Result<Status, Failure> },
}

impl Send {
    /// The result by the receiver's verdict. A process that departs cancels what was not received.
    pub(crate) fn outcome(&self, verdict: Verdict, departing: bool) -> Result<Status, PmlError> {
        let (rank, tag) = (self.to.rank, self.envelope.tag);
        match verdict {
            Verdict::Received(protocol) => Ok(self.status(protocol)),
            Verdict::Refused => Ok(self.status(Protocol::Pipeline)),
            Verdict::NotReady => Err(PmlError::NotReady { rank, tag }),
            Verdict::Cancelled if !departing => Err(PmlError::Cancelled),
            Verdict::Cancelled | Verdict::Unreceived => Err(PmlError::Unreceived { rank, tag }),
            Verdict::Revoked => Err(PmlError::Revoked),
        }
    }

    pub(crate) fn status(&self, protocol: Protocol) -> Status {
        let bytes = self.buffer.bytes();
        Status { source: self.to.rank, tag: self.envelope.tag, bytes, protocol }
    }
}

/// A receive in flight.
#[derive(Debug)]
pub(crate) struct Recv {
    pub(crate) buffer: Buffer,
    pub(crate) context: u32,
    /// The process it takes messages of, if it names one.
    pub(crate) source: Option<u32>,
    /// It goes on if its communicator is revoked.
    pub(crate) survives: bool,
    pub(crate) stage: RecvStage,
}

/// What a receive is waiting for.
#[derive(Debug)]
pub(crate) enum RecvStage {
    /// Being started or matched.
    Unmatched,
    /// A message.
    Posted(PostedPlace),
    /// An engine that scatters an eager message.
    Unpacking { from: u32 },
    /// A rendezvous.
    Incoming(Box<Incoming>),
}

impl Recv {
    /// Checks that a message fits this receive.
    pub(crate) fn check_fit(
        &self,
        digests: &mut Digests,
        envelope: &Envelope,
    ) -> Result<(), PmlError> {
        let typed = self.buffer.typed();
        // The same types in the same number: by far the most frequent case.
        if digests.of(typed.layout(), typed.count()) == envelope.digest {
            return Ok(());
        }
        let posted = typed.layout().signature();
        match posted.accepts_prefix(typed.count(), &envelope.digest) {
            Ok(()) => Ok(()),
            Err(SignatureError::TooLong { sent_bytes, posted_bytes }) => {
                let (sent, room) = (sent_bytes, posted_bytes);
                Err(PmlError::Truncated { sent, room })
            }
            Err(error) => Err(PmlError::SignatureMismatch { error }),
        }
    }

    /// The peer whose message it is receiving.
    pub(crate) fn receiving_from(&self) -> Option<u32> {
        match &self.stage {
            RecvStage::Unmatched | RecvStage::Posted(_) => None,
            RecvStage::Unpacking { from } => Some(*from),
            RecvStage::Incoming(incoming) => Some(incoming.from),
        }
    }
}

impl From<PostedRecv> for Operation {
    fn from(posted: PostedRecv) -> Operation {
        Operation::Recv(Recv {
            buffer: posted.buffer.into_buffer(posted.engine.into()),
            context: posted.context,
            source: Some(posted.peer),
            survives: false,
            stage: RecvStage::Posted(PostedPlace::direct(posted.place)),
        })
    }
}

impl Requests<Operation> {
    /// A send that is in flight.
    pub(crate) fn send_mut(&mut self, id: RequestId) -> Option<&mut Send> {
        match self.operation_mut(id)? {
            Operation::Send(send) => Some(send),
            _ => None,
        }
    }

    /// The offer of a send.
    pub(crate) fn offered(&mut self, id: RequestId) -> Option<&mut Offered> {
        match &mut self.send_mut(id)?.stage {
            SendStage::Rendezvous(offered) => Some(offered),
            _ => None,
        }
    }

    /// The rendezvous that a receive is in.
    pub(crate) fn incoming(&mut self, id: RequestId) -> Option<(&mut Incoming, &Buffer)> {
        let recv = self.recv_mut(id)?;
        match &mut recv.stage {
            RecvStage::Incoming(incoming) => Some((incoming, &recv.buffer)),
            _ => None,
        }
    }

    /// An engine has released the buffer of a send that has failed.
    pub(crate) fn drained(&mut self, id: RequestId) {
        let Some(send) = self.send_mut(id) else { return };
        if let SendStage::Draining { packing, result } = &mut send.stage {
            *packing -= 1;
            if *packing == 0 {
                let result = result.clone();
                self.finish(id, result);
            }
        }
    }

    /// Ends an eager send, whatever it waits for.
    pub(crate) fn finish_eager(&mut self, id: RequestId, result: Result<Status, PmlError>) {
        if let Some(send) = self.send_mut(id)
            && let SendStage::Eager { serial } | SendStage::Unanswered { serial } = send.stage
            && serial != 0
        {
            self.unname(serial);
        }
        self.finish(id, result);
    }

    /// Ends a send that was offered, at once, or when no engine reads its buffer any more.
    pub(crate) fn finish_offered(
        &mut self,
        id: RequestId,
        packing: bool,
        result: Result<Status, Failure>,
    ) {
        match self.send_mut(id) {
            Some(send) if packing => send.stage = SendStage::Draining { packing: 1, result },
            _ => self.finish(id, result),
        }
    }

    /// A receive that is in flight.
    pub(crate) fn recv_mut(&mut self, id: RequestId) -> Option<&mut Recv> {
        self.write_out(id);
        match self.operation_mut(id)? {
            Operation::Recv(recv) => Some(recv),
            _ => None,
        }
    }

    /// What a cancelled send waits for.
    pub(crate) fn eager_cancel(&self, id: RequestId) -> Option<EagerCancel> {
        match self.operation(id)? {
            Operation::EagerCancel(cancel) => Some(*cancel),
            _ => None,
        }
    }
}
