//! The pipeline: packed fragments through the transport's slots, two copies, both ends busy.
//!
//! ```text
//! sender                                   receiver
//!   | <--- CTS(offset..end, fragment, depth) | decides sizes within both ends' wishes
//!   | DATA(offset) ------------------------> | unpacked from the slot, in any order
//!   | DATA(offset) ------------------------> |
//!   | complete: all has been packed          | complete: all has been unpacked
//! ```
//!
//! The sender packs straight into slots as they become free, `fragments_per_progress` at a time, at
//! most `depth` of them with an asynchronous engine. If its engine fails, ABORT tells the receiver.

use crate::choose::Protocol;
use crate::core::{AM_TAG, Core};
use crate::error::PmlError;
use crate::header::{self, Cts, DATA_BYTES};
use crate::inflight::{Flight, InFlight};
use crate::peer::Streamed;
use crate::pieces::Pieces;
use crate::recv::RecvStage;
use crate::rendezvous::Stage;
use crate::request::RequestId;
use crate::send::{SendStage, Streaming, to_usize};
use gapless_bml::{Bml, Fragment, RailSlot, Token};
use gapless_engine::EngineError;
use gapless_mem::Completion;

/// Length of fragments of a message without gaps between hosts: short ones have both ends at work sooner, long ones
/// have them look for each other less often. Rows are better off with longer ones, in which fewer of them are cut.
/// 64 KiB take 6.0 us in fragments of 16 KiB, 6.3 of 32, 8.1 of 64; 1 MiB takes 59, 57, 61; more gains nothing.
fn plain_fragment(bytes: u64) -> u32 {
    match bytes {
        0..0x2_0001 => 16 << 10,
        0x2_0001..0x20_0001 => 32 << 10,
        _ => u32::MAX,
    }
}

impl Core {
    /// Asks the sender for everything from packed byte `offset` on.
    pub(crate) fn grant(&mut self, bml: &mut Bml, id: RequestId, offset: u64) {
        let tuning = &self.config.tuning;
        let (wish, depth) = (tuning.fragment_bytes, tuning.depth);
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let from = incoming.from;
        let gapless = incoming.gapless() && buffer.typed().as_contiguous().is_some();
        let host = incoming.rts.host && buffer.typed().space().cpu_accessible();
        let wish = if gapless && host { wish.min(plain_fragment(incoming.room)) } else { wish };
        let fits = Core::fragment_max(bml, from).saturating_sub(DATA_BYTES);
        let fits = u32::try_from(fits).unwrap_or(u32::MAX);
        let fragment = incoming.rts.fragment.min(wish).min(fits).max(header::FRAGMENT_MIN);
        let cts = Cts {
            serial: incoming.rts.serial,
            reply: incoming.reply,
            offset,
            end: incoming.room,
            fragment,
            depth: incoming.rts.depth.min(depth).max(1),
        };
        incoming.protocol = Protocol::Pipeline;
        let pieces = Pieces::new(offset, incoming.room, u64::from(fragment));
        incoming.stage = Stage::Streaming { pieces, unpacking: 0 };
        self.send_control(bml, from, &cts.wire());
    }

    /// The receiver asks for data.
    pub(crate) fn clear_to_send(
        &mut self,
        bml: &mut Bml,
        from: u32,
        cts: Cts,
    ) -> Result<(), String> {
        let fits = Core::fragment_max(bml, from).saturating_sub(DATA_BYTES) as u64;
        let (id, send) = self.offered(from, cts.serial)?;
        let bytes = send.buffer.bytes();
        if cts.end > bytes || u64::from(cts.fragment) > fits {
            return Err(format!(
                "a CTS for bytes up to {} of {bytes}, in fragments of {} (at most {fits})",
                cts.end, cts.fragment
            ));
        }
        self.withdraw_offer(bml, id);
        if let Some(send) = self.requests.send_mut(id) {
            send.stage = SendStage::Streaming(Streaming {
                reply: cts.reply,
                next: cts.offset,
                end: cts.end,
                fragment: cts.fragment,
                depth: cts.depth,
                packing: 0,
            });
        }
        self.peers[from as usize].streams.push_back(id);
        self.activate(from);
        Ok(())
    }

    /// Sends the next fragment of a message.
    pub(crate) fn send_fragment(&mut self, bml: &mut Bml, peer: u32, id: RequestId) -> Streamed {
        let Some(send) = self.requests.send_mut(id) else { return Streamed::Ended };
        let SendStage::Streaming(stream) = &send.stage else { return Streamed::Ended };
        if stream.next >= stream.end {
            // The rest is with an engine; `packed` ends the request.
            return Streamed::Ended;
        }
        if stream.packing >= stream.depth {
            return Streamed::Busy;
        }
        let (reply, start) = (stream.reply, stream.next);
        let end = stream.end.min(start.saturating_add(u64::from(stream.fragment)));
        let Some(mut slot) = self.reserve(bml, peer, DATA_BYTES + to_usize(end - start)) else {
            return Streamed::Full;
        };
        let Some(send) = self.requests.send_mut(id) else { return Streamed::Ended };
        let packed = slot
            .write(0, &header::data(reply, start))
            .map_err(EngineError::from)
            .and_then(|()| send.buffer.pack(&self.engines, start..end, &slot, DATA_BYTES));
        let tally = self.counters.tally(Protocol::Pipeline);
        (tally.fragments, tally.packs) = (tally.fragments + 1, tally.packs + 1);
        let SendStage::Streaming(stream) = &mut send.stage else { return Streamed::Ended };
        match packed {
            Ok(Completion::Ready) => {
                stream.next = end;
                let ended = end == stream.end && stream.packing == 0;
                bml.send(slot, AM_TAG, Token::NONE);
                if ended {
                    let status = send.status(Protocol::Pipeline);
                    self.requests.finish(id, Ok(status));
                    return Streamed::Sent;
                }
            }
            Ok(completion) => {
                stream.next = end;
                stream.packing += 1;
                let work = Flight::Pack { id, peer, slot };
                self.in_flight.push(InFlight { completion, work });
            }
            Err(error) => {
                drop(slot);
                self.stop_streaming(bml, id, error);
                return Streamed::Ended;
            }
        }
        Streamed::Sent
    }

    /// An engine has packed a fragment, or failed to.
    pub(crate) fn packed(
        &mut self,
        bml: &mut Bml,
        (id, peer, slot): (RequestId, u32, RailSlot),
        result: Result<(), EngineError>,
    ) {
        let Some(send) = self.requests.send_mut(id) else { return };
        match (&mut send.stage, result) {
            (SendStage::Streaming(stream), Ok(())) => {
                stream.packing -= 1;
                let ended = stream.next >= stream.end && stream.packing == 0;
                bml.send(slot, AM_TAG, Token::NONE);
                if ended {
                    let status = send.status(Protocol::Pipeline);
                    self.requests.finish(id, Ok(status));
                } else {
                    self.activate(peer);
                }
            }
            (SendStage::Streaming(stream), Err(error)) => {
                stream.packing -= 1;
                self.stop_streaming(bml, id, error);
            }
            (SendStage::Draining { packing, error }, _) => {
                *packing -= 1;
                if *packing == 0 {
                    let error = error.clone();
                    self.requests.finish(id, Err(error));
                }
            }
            _ => {}
        }
    }

    /// The sender's engine has failed: tells the receiver, and ends the send once no engine reads
    /// its buffer any more.
    fn stop_streaming(&mut self, bml: &mut Bml, id: RequestId, error: EngineError) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let SendStage::Streaming(stream) = &send.stage else { return };
        let (peer, reply, packing) = (send.to.peer, stream.reply, stream.packing);
        if packing == 0 {
            self.requests.finish(id, Err(error.into()));
        } else {
            send.stage = SendStage::Draining { packing, error: error.into() };
        }
        self.send_control(bml, peer, &header::abort(reply));
    }

    /// The receive that `reply` names.
    pub(crate) fn receiving(&self, reply: u64) -> Result<RequestId, String> {
        let known = self.serials.get(&reply);
        known.copied().ok_or_else(|| format!("data for receive {reply}, which is not under way"))
    }

    /// A fragment has arrived.
    pub(crate) fn data(
        &mut self,
        from: u32,
        reply: u64,
        offset: u64,
        fragment: Fragment,
    ) -> Result<(), String> {
        let unknown = || format!("data for receive {reply}, which takes none");
        let id = self.receiving(reply)?;
        let recv = self.requests.recv_mut(id).ok_or_else(unknown)?;
        let RecvStage::Incoming(incoming) = &mut recv.stage else { return Err(unknown()) };
        let Stage::Streaming { pieces, unpacking } = &mut incoming.stage else {
            return Err(unknown());
        };
        if incoming.from != from {
            return Err(unknown());
        }
        let len = (fragment.len() - DATA_BYTES) as u64;
        pieces.take(offset, len)?;
        let dead = matches!(&incoming.failure, Some(error) if !matches!(error, PmlError::Truncated { .. }));
        if !dead {
            let data = fragment.region().sub(DATA_BYTES as u64, len).map_err(|e| e.to_string())?;
            let tally = self.counters.tally(Protocol::Pipeline);
            (tally.fragments, tally.unpacks) = (tally.fragments + 1, tally.unpacks + 1);
            match recv.buffer.unpack(&self.engines, data, offset..offset + len) {
                Ok(Completion::Ready) => {}
                Ok(completion) => {
                    *unpacking += 1;
                    let work = Flight::Scatter { id, fragment };
                    self.in_flight.push(InFlight { completion, work });
                    return Ok(());
                }
                Err(error) => incoming.failure = Some(error.into()),
            }
        }
        if pieces.complete() && *unpacking == 0 {
            self.finish_incoming(id);
        }
        Ok(())
    }

    /// An engine has unpacked a fragment, or failed to.
    pub(crate) fn scattered(&mut self, id: RequestId, result: Result<(), EngineError>) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let Stage::Streaming { pieces, unpacking } = &mut incoming.stage else { return };
        *unpacking -= 1;
        // Nothing more comes from a sender that is lost or has given up.
        let over = matches!(
            incoming.failure,
            Some(PmlError::PeerLost { .. } | PmlError::SenderFailed { .. })
        );
        let ended = *unpacking == 0 && (pieces.complete() || over);
        if let Err(error) = result
            && !over
        {
            incoming.failure = Some(error.into());
        }
        if ended {
            self.finish_incoming(id);
        }
    }

    /// The sender cannot go on.
    pub(crate) fn aborted(&mut self, bml: &mut Bml, from: u32, reply: u64) -> Result<(), String> {
        let unknown = || format!("an end of receive {reply}, which takes no data");
        let id = self.receiving(reply)?;
        let (incoming, _) = self.incoming(id).ok_or_else(unknown)?;
        if incoming.from != from {
            return Err(unknown());
        }
        let (working, staged) = match &incoming.stage {
            Stage::Streaming { unpacking, .. } => (*unpacking, false),
            Stage::Staged(staged) if staged.going => (staged.course.working, true),
            _ => return Err(unknown()),
        };
        incoming.failure = Some(PmlError::SenderFailed { rank: from });
        match (working, staged) {
            (0, true) => self.end_recv(bml, id),
            (0, false) => self.finish_incoming(id),
            _ => {}
        }
        Ok(())
    }
}
